// Finds the certificates of the authorities that the system trusts. Each distribution keeps them at its own path, so
// the path that a libcurl was built with is right on one of them.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace millrace::http {

/// Paths of PEM certificates. Both are empty if nothing was found: libcurl then uses its own default, if it has one.
struct Authorities {
  std::string file, folder;

  bool empty() const { return file.empty() && folder.empty(); }
  /// Reads SSL_CERT_FILE and SSL_CERT_DIR, which are OpenSSL's variables. If neither is set, looks below `root` for the
  /// file of each distribution and returns the first that exists.
  static Authorities OfSystem(const std::function<std::optional<std::string>(const char*)>& getenv,
                              const std::filesystem::path& root = "/");
};

}  // namespace millrace::http
