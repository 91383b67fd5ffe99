// All buckets of an endpoint as one store.
#pragma once

#include <memory>

#include "millrace/object/connection.h"

namespace millrace::object {

/// A store whose keys are "bucket/key", so that each bucket is a folder at the top. Each bucket has an empty object
/// with the key "bucket/", which cannot be changed. Other keys without a name behind the first slash fail with
/// kPermissionDenied, because only the service makes and removes buckets. A listing of several buckets needs the
/// delimiter. The server copies between buckets. The connection must outlive the store.
Result<std::shared_ptr<Store>> OpenAllBuckets(Connection& connection);

}  // namespace millrace::object
