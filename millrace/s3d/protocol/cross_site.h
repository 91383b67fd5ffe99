// The check for requests that a web page makes a browser send. Without signatures, only the fields Host, Origin and
// Sec-Fetch-Site distinguish a page's requests from those of the machine's user.
#pragma once

#include "millrace/http/headers.h"
#include "millrace/s3d/protocol/s3_error.h"

namespace millrace::s3d {

/// Refuses an unsigned request from another site: its Origin is not this endpoint, or its Sec-Fetch-Site names another
/// site. Unless `any_host`, its Host must be an address, "localhost" or a name below it. A page whose own name points
/// to this machine (DNS rebinding) sends that name as Host.
Reply<void> CheckSite(const http::Headers& headers, bool any_host);

}  // namespace millrace::s3d
