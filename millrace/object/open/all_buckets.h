// All buckets of an endpoint as one store.
#pragma once

#include <memory>

#include "millrace/object/connection.h"

namespace millrace::object {

/// A store whose keys are "bucket/key": what is true of one bucket's keys is true of each folder at the top. Every
/// bucket has a key of its own, "bucket/", empty and unchangeable; other keys without a name behind the first slash
/// cannot be (kPermissionDenied: buckets are made and removed by the service). A listing across buckets needs the
/// delimiter. Copies between buckets are the server's. Shares the connection, which must outlive it.
Result<std::shared_ptr<Store>> OpenAllBuckets(Connection& connection);

}  // namespace millrace::object
