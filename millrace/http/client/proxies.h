// The proxies that the client uses.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace millrace::http {

/// Empty: no proxies.
struct Proxies {
  std::string http, https;  ///< URLs ("http://host:port"), by the scheme of the request
  std::string except;       ///< hosts, domains and networks reached without a proxy, separated by commas; "*": all
  /// Reads HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY. The spellings in lower case take precedence.
  static Proxies FromEnvironment(const std::function<std::optional<std::string>(const char*)>& getenv);
};

}  // namespace millrace::http
