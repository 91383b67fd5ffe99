// Detects requests that a web page of another site makes a browser send. Without signatures or keys, only the fields
// Host, Origin and Sec-Fetch-Site distinguish these from the requests of the machine's user.
#pragma once

#include <string_view>

#include "millrace/http/headers.h"

namespace millrace::http {

enum class RequestSite {
  kOwn,        ///< a program, or a page of this server
  kOther,      ///< a page of another site: Origin is not this server, or Sec-Fetch-Site names another site
  kNamedHost,  ///< Host is a name that may point anywhere, not an address, "localhost" or a name below it
};

/// Returns where a request comes from. `scheme`: of this server, "http" or "https". A page whose own name points to
/// this machine (DNS rebinding) sends that name as Host, and is kNamedHost.
RequestSite SiteOf(const Headers& headers, std::string_view scheme = "http");

}  // namespace millrace::http
