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

/// A store whose keys are "bucket/key", so that each bucket is a folder at the top. Each bucket has an empty object
/// with the key "bucket/", which cannot be changed. Other keys without a name behind the first slash fail with
/// kPermissionDenied, because only the service makes and removes buckets. A listing of several buckets needs the
/// delimiter. The server copies between buckets. The connection must outlive the store.
Result<std::shared_ptr<Store>> OpenAllBuckets(Connection& connection);

}  // namespace millrace::object
