// Requests that a web page makes a browser send. Without signatures, an endpoint on loopback cannot tell a page's
// requests from those of the machine's user by anything but their Host, Origin and Sec-Fetch-Site fields.
#pragma once

#include "millrace/http/headers.h"
#include "millrace/s3d/protocol/s3_error.h"

namespace millrace::s3d {

/// Refuses an unsigned request that comes from another site: with an Origin that is not this endpoint, or with a
/// Sec-Fetch-Site that says so. Unless `any_host`, its Host must be an address, "localhost" or a name below it: a page
/// that lets its own name point to this machine (DNS rebinding) sends that name.
Reply<void> CheckSite(const http::Headers& headers, bool any_host);

}  // namespace millrace::s3d
