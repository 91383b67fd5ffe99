// Opens the real stores: S3 over HTTP for s3:// URLs, folders for file URLs and paths.
#pragma once

#include <memory>

#include "millrace/base/result.h"
#include "millrace/object/connect_options.h"
#include "millrace/object/connection.h"

namespace millrace::object {

/// A connection that opens each kind of store at its first use. So commands on local files need neither credentials nor
/// a network. Errors in `options` show at that first use, too.
Result<std::unique_ptr<Connection>> OpenConnection(ConnectOptions options);

}  // namespace millrace::object
