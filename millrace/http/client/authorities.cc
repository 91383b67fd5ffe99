#include "millrace/http/client/authorities.h"

#include <initializer_list>
#include <system_error>

namespace millrace::http {
namespace {

// The order of Go's crypto/x509/root_linux.go.
constexpr std::initializer_list<const char*> kFiles = {
    "etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch
    "etc/pki/tls/certs/ca-bundle.crt",                   // Fedora, RHEL, Amazon Linux
    "etc/ssl/ca-bundle.pem",                             // openSUSE
    "etc/pki/tls/cacert.pem",                            // OpenELEC
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // RHEL without the links of earlier releases
    "etc/ssl/cert.pem",                                  // Alpine
};

}  // namespace

Authorities Authorities::OfSystem(const std::function<std::optional<std::string>(const char*)>& getenv,
                                  const std::filesystem::path& root) {
  Authorities found{.file = getenv("SSL_CERT_FILE").value_or(""), .folder = getenv("SSL_CERT_DIR").value_or("")};
  if (!found.empty()) return found;
  for (const char* file : kFiles) {
    std::error_code error;
    if (std::filesystem::exists(root / file, error)) return {.file = (root / file).string()};
  }
  return {};
}

}  // namespace millrace::http
