#include "millrace/http/client/proxies.h"

#include <initializer_list>

namespace millrace::http {

Proxies Proxies::FromEnvironment(const std::function<std::optional<std::string>(const char*)>& getenv) {
  auto first = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (auto value = getenv(name)) return *value;
    }
    return std::string();
  };
  return {.http = first({"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"}),
          .https = first({"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}),
          .except = first({"no_proxy", "NO_PROXY"})};
}

}  // namespace millrace::http
