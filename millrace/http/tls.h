// TLS for servers, by OpenSSL: a certificate, its key, and the encryption of one connection.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"

struct ssl_st;
struct ssl_ctx_st;

namespace millrace::http {

struct SslDeleter {
  void operator()(ssl_st* session) const;
};
/// OpenSSL's state of one connection.
using SslSession = std::unique_ptr<ssl_st, SslDeleter>;

/// The certificate and key that a server shows its clients. Connections have TLS 1.2 or newer, and HTTP/1.1.
/// Thread-safe.
class TlsIdentity {
 public:
  /// Reads a chain of certificates, the server's own first, and the key of that one, both in PEM. Blocks.
  /// Errors: those of ReadPrivateFile for the key; kInvalidArgument if a file is broken, the key wants a passphrase, or
  /// it belongs to another certificate.
  static Result<std::shared_ptr<TlsIdentity>> Load(const std::filesystem::path& certificate,
                                                   const std::filesystem::path& key);
  /// Reads the files again, for connections that come from now on. After an error, the old ones stay. Blocks.
  Status Reload() MR_EXCLUDES(mutex_);
  /// Returns the state of a new connection over this socket, which stays the caller's.
  /// Errors: kResourceExhausted.
  Result<SslSession> NewSession(int fd) const MR_EXCLUDES(mutex_);

 private:
  TlsIdentity(std::filesystem::path certificate, std::filesystem::path key)
      : certificate_(std::move(certificate)), key_(std::move(key)) {}

  const std::filesystem::path certificate_, key_;
  mutable Mutex mutex_;
  std::shared_ptr<ssl_ctx_st> context_ MR_GUARDED_BY(mutex_);
};

/// The files of a TlsIdentity, from flags. Both or none.
struct TlsFiles {
  std::filesystem::path certificate, key;
};
/// Returns null without files. Errors: kInvalidArgument if one is missing; those of TlsIdentity::Load.
Result<std::shared_ptr<TlsIdentity>> OpenTls(const TlsFiles& files);

}  // namespace millrace::http
