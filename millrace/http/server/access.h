// Access control of a server: bearer keys, and the rule that a server without keys listens on loopback only.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash/digest.h"
#include "millrace/base/result.h"
#include "millrace/http/headers.h"

namespace millrace::http {

/// The bearer keys that a server accepts. Without keys, it accepts every request. Immutable, therefore thread-safe.
class ApiKeys {
 public:
  ApiKeys() = default;
  explicit ApiKeys(const std::vector<std::string>& keys);

  /// Reads a file with one key in each line. Skips blank lines and lines that start with '#'. All keys are valid at the
  /// same time, so that a new key can replace an old one without a gap. Reads the file once.
  /// Errors: kPermissionDenied if users other than owner and group may read the file, if others than its owner may
  /// write it, or if it belongs to neither this user nor root. kInvalidArgument if it has no key, or a key that is too
  /// short or is not visible ASCII.
  static Result<ApiKeys> Load(const std::filesystem::path& file);

  bool empty() const { return digests_.empty(); }
  std::size_t size() const { return digests_.size(); }
  /// Returns whether a request with these headers may pass: there are no keys, or it has one of them (`Authorization:
  /// Bearer KEY`). Takes the same time for every wrong key.
  bool Allow(const Headers& headers) const { return empty() || Find(headers); }
  /// Returns the number of the key that a request with these headers has, counted from 0 in the file's order; nothing
  /// if it has none of them. Takes the same time for every key.
  std::optional<int> Find(const Headers& headers) const;

 private:
  /// Of the keys. Digests have one length, so the time of a comparison does not reveal a key's length.
  std::vector<Sha256Digest> digests_;
};

/// The access rules of a server, from flags and job files.
struct AccessOptions {
  std::filesystem::path key_file;  ///< see ApiKeys::Load; empty: no keys
  bool insecure = false;           ///< listen beyond loopback without keys
};

/// The keys for a server that listens on `listen` ("host:port").
/// Errors: those of Load. kInvalidArgument if `listen` is not a loopback address, there is no key file, and `insecure`
/// is false; the message advises the user to give `how` ("--api-key-file FILE").
Result<ApiKeys> OpenAccess(std::string_view listen, const AccessOptions& options, std::string_view how);

/// True for "localhost" and for literal addresses 127.0.0.0/8, ::1 and ::ffff:127.0.0.0/104, with or without brackets.
/// False for a name that merely looks like an address ("127.evil.com"), because its owner may point it anywhere.
bool IsLoopbackHost(std::string_view host);
/// The host of "host", "host:port", "[v6]" or "[v6]:port"; "" for anything else, such as "127.0.0.1:80@evil.com".
std::string_view HostOfAuthority(std::string_view authority);

}  // namespace millrace::http
