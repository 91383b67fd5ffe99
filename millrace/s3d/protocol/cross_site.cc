#include "millrace/s3d/protocol/cross_site.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <string>

#include "millrace/base/text.h"
#include "millrace/http/server/access.h"

namespace millrace::s3d {
namespace {

bool IsAddress(std::string_view host) {
  in6_addr scratch{};
  if (host.starts_with('[') && host.ends_with(']')) {
    return inet_pton(AF_INET6, std::string(host.substr(1, host.size() - 2)).c_str(), &scratch) == 1;
  }
  return inet_pton(AF_INET, std::string(host).c_str(), &scratch) == 1;
}

}  // namespace

Reply<void> CheckSite(const http::Headers& headers, bool any_host) {
  const std::string authority = ToLower(headers.Get("Host")), origin = ToLower(headers.Get("Origin"));
  const std::string_view site = headers.Get("Sec-Fetch-Site");
  const bool is_other_site = !site.empty() && site != "same-origin" && site != "none";
  if (is_other_site || (!origin.empty() && origin != "http://" + authority)) {
    return Refuse("AccessDenied", "A web page of another site sent this request, and it is not signed");
  }
  const std::string_view host = http::HostOfAuthority(authority);
  if (any_host || IsAddress(host) || host == "localhost" || host.ends_with(".localhost")) return {};
  return Refuse("AccessDenied",
                fmt::format("Unsigned requests must name this endpoint by an address or as localhost, not as {}: sign "
                            "them, or run the endpoint with --insecure",
                            host));
}

}  // namespace millrace::s3d
