#include "millrace/http/server/cross_site.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <fmt/format.h>

#include <string>

#include "millrace/base/text.h"
#include "millrace/http/server/access.h"

namespace millrace::http {
namespace {

bool IsLiteralAddress(std::string_view host) {
  in6_addr scratch{};
  if (host.starts_with('[') && host.ends_with(']')) {
    return inet_pton(AF_INET6, std::string(host.substr(1, host.size() - 2)).c_str(), &scratch) == 1;
  }
  return inet_pton(AF_INET, std::string(host).c_str(), &scratch) == 1;
}

}  // namespace

RequestSite SiteOf(const Headers& headers, std::string_view scheme) {
  const std::string authority = ToLower(headers.Get("Host")), origin = ToLower(headers.Get("Origin"));
  const std::string_view site = headers.Get("Sec-Fetch-Site");
  const bool is_other_site = !site.empty() && site != "same-origin" && site != "none";
  if (is_other_site || (!origin.empty() && origin != fmt::format("{}://{}", scheme, authority)))
    return RequestSite::kOther;
  const std::string_view host = HostOfAuthority(authority);
  const bool is_this_machine = IsLiteralAddress(host) || host == "localhost" || host.ends_with(".localhost");
  return is_this_machine ? RequestSite::kOwn : RequestSite::kNamedHost;
}

}  // namespace millrace::http
