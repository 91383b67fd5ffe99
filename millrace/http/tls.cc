#include "millrace/http/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <array>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/http/private_file.h"

namespace millrace::http {
namespace {

constexpr std::uint64_t kMaxPemBytes = 1 * kMiB;  // a chain has some kilobytes

template <auto free>
struct OpenSslDeleter {
  template <class T>
  void operator()(T* object) const {
    free(object);
  }
};
using Bio = std::unique_ptr<BIO, OpenSslDeleter<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, OpenSslDeleter<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, OpenSslDeleter<EVP_PKEY_free>>;

/// Returns OpenSSL's reason for the last failure of this thread, and forgets it.
std::string LastReason() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason != nullptr ? reason : "no reason given";
}

Bio MemoryBio(std::string_view text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

/// No terminal is asked for a passphrase.
int NoPassphrase(char*, int, int, void*) { return -1; }

/// Chooses HTTP/1.1 if the client offers it. A client that offers only other protocols goes on without one.
int ChooseProtocol(SSL*, const unsigned char** chosen, unsigned char* length, const unsigned char* offered,
                   unsigned int offered_length, void*) {
  static constexpr unsigned char kOwn[] = "\x08http/1.1";
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(&found, length, kOwn, sizeof kOwn - 1, offered, offered_length) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_NOACK;
  }
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

Status UseCertificates(SSL_CTX* context, const std::filesystem::path& file) {
  const std::string text = MR_TRY(ReadFile(file));
  if (text.size() > kMaxPemBytes) {
    return Fail(Code::kInvalidArgument, "{} is too large for certificates; name a file of PEM certificates",
                file.string());
  }
  const Bio bio = MemoryBio(text);
  const Certificate own(PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr));
  if (!own || SSL_CTX_use_certificate(context, own.get()) != 1) {
    return Fail(Code::kInvalidArgument, "{} has no certificate in PEM that can be used: {}", file.string(),
                LastReason());
  }
  while (Certificate next{PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr)}) {
    if (SSL_CTX_add1_chain_cert(context, next.get()) != 1) {
      return Fail(Code::kInvalidArgument, "{}: a certificate of the chain cannot be used: {}; replace it",
                  file.string(), LastReason());
    }
  }
  if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE && ERR_peek_last_error() != 0) {
    return Fail(Code::kInvalidArgument, "{}: a certificate of the chain is broken: {}; copy the chain again, in PEM",
                file.string(), LastReason());
  }
  ERR_clear_error();
  return {};
}

Status UseKey(SSL_CTX* context, const std::filesystem::path& file, const std::filesystem::path& certificate) {
  const std::string text = MR_TRY(ReadPrivateFile(file, kMaxPemBytes));
  const PrivateKey key(PEM_read_bio_PrivateKey(MemoryBio(text).get(), nullptr, NoPassphrase, nullptr));
  if (!key) {
    return Fail(Code::kInvalidArgument, "{} has no key in PEM without a passphrase: {}; convert it with `openssl pkey`",
                file.string(), LastReason());
  }
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1 || SSL_CTX_check_private_key(context) != 1) {
    return Fail(Code::kInvalidArgument,
                "the key in {} is not that of the certificate in {}: {}; give the pair that was issued together",
                file.string(), certificate.string(), LastReason());
  }
  return {};
}

Result<std::shared_ptr<ssl_ctx_st>> MakeContext(const std::filesystem::path& certificate,
                                                const std::filesystem::path& key) {
  std::shared_ptr<ssl_ctx_st> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (!context) return Fail(Code::kResourceExhausted, "no memory for TLS: {}", LastReason());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  // Clients that end a connection without close_notify are common, and HTTP frames its messages itself.
  SSL_CTX_set_options(context.get(), SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_alpn_select_cb(context.get(), ChooseProtocol, nullptr);
  MR_TRY(UseCertificates(context.get(), certificate));
  MR_TRY(UseKey(context.get(), key, certificate));
  return context;
}

}  // namespace

void SslDeleter::operator()(ssl_st* session) const { SSL_free(session); }

Result<std::shared_ptr<TlsIdentity>> TlsIdentity::Load(const std::filesystem::path& certificate,
                                                       const std::filesystem::path& key) {
  std::shared_ptr<TlsIdentity> identity(new TlsIdentity(certificate, key));
  MR_TRY(identity->Reload());
  return identity;
}

Status TlsIdentity::Reload() {
  auto context = MR_TRY(MakeContext(certificate_, key_));
  MutexLock lock(mutex_);
  context_ = std::move(context);
  return {};
}

Result<SslSession> TlsIdentity::NewSession(int fd) const {
  MutexLock lock(mutex_);
  SslSession session(SSL_new(context_.get()));
  if (!session || SSL_set_fd(session.get(), fd) != 1) {
    return Fail(Code::kResourceExhausted, "no memory for a TLS connection: {}", LastReason());
  }
  SSL_set_accept_state(session.get());
  return session;
}

Result<std::shared_ptr<TlsIdentity>> OpenTls(const TlsFiles& files) {
  if (files.certificate.empty() && files.key.empty()) return std::shared_ptr<TlsIdentity>();
  if (files.certificate.empty() || files.key.empty()) {
    return Fail(Code::kInvalidArgument, "TLS wants a certificate and its key: give --tls-cert and --tls-key");
  }
  return TlsIdentity::Load(files.certificate, files.key);
}

}  // namespace millrace::http
