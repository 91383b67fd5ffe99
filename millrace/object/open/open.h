// Opens the real stores: S3 over HTTP for s3:// URLs, Hugging Face's hub for hf:// URLs (read only), folders for file
// URLs and paths.
#pragma once

#include <memory>

#include "millrace/base/error.h"
#include "millrace/object/connect_options.h"
#include "millrace/object/connection.h"

namespace millrace::object {

/// Returns a connection that opens each kind of store at its first use, so that commands on local files need neither
/// credentials nor a network. Errors in `options` appear at that first use.
Result<std::unique_ptr<Connection>> OpenConnection(ConnectOptions options);

}  // namespace millrace::object
