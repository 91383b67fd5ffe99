// Who may use a server: bearer keys, and the rule that a server which asks for no key stays on loopback.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash/digest.h"
#include "millrace/base/result.h"
#include "millrace/http/client/client.h"  // Headers

namespace millrace::http {

/// The bearer keys that a server accepts. Without any, it accepts every request. Immutable; any thread may use it.
class ApiKeys {
 public:
  ApiKeys() = default;
  explicit ApiKeys(const std::vector<std::string>& keys);

  /// Reads one key a line; blank lines and lines that start with '#' are left out. Several keys are valid at a time, so
  /// that one can replace another. The file is read once.
  /// Errors: kPermissionDenied if other users may read the file, if others than its owner may write it, or if it
  /// belongs to neither this user nor root. kInvalidArgument if it has no key, or one that is short or no visible
  /// ASCII.
  static Result<ApiKeys> Load(const std::filesystem::path& file);

  bool empty() const { return digests_.empty(); }
  /// Whether a request with these headers may pass: there are no keys, or it has one (`Authorization: Bearer KEY`).
  /// Takes the same time for every wrong key.
  bool Allow(const Headers& headers) const;

 private:
  std::vector<Sha256Digest> digests_;  // of the keys: all of one length, so that comparing tells nothing of it
};

/// Who may reach a server and what it asks of them, as flags and job files say it.
struct AccessOptions {
  std::filesystem::path key_file;  ///< see ApiKeys::Load; empty: no keys
  bool insecure = false;           ///< listen beyond loopback without keys
};

/// The keys for a server that listens on `listen` ("host:port").
/// Errors: those of Load. kInvalidArgument if `listen` is not an address of loopback, there is no key file, and
/// `insecure` is false; `how` tells the user what to give ("--api-key-file FILE").
Result<ApiKeys> OpenAccess(std::string_view listen, const AccessOptions& options, std::string_view how);

/// True for "localhost" and for literal addresses 127.0.0.0/8, ::1 and ::ffff:127.0.0.0/104, with or without brackets.
/// A name that merely looks like an address ("127.evil.com") is none: who has it may point it anywhere.
bool IsLoopbackHost(std::string_view host);
/// The host of "host", "host:port", "[v6]" or "[v6]:port"; "" for anything else, such as "127.0.0.1:80@evil.com".
std::string_view HostOfAuthority(std::string_view authority);

}  // namespace millrace::http
