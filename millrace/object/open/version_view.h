// Old versions of a bucket's objects as a store of their own, so that all that reads a store reads old versions too.
#pragma once

#include <memory>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/object/store.h"

namespace millrace::object {

/// Returns the objects of `store` as they were at a time: of each key the version that was the current one, unless that
/// was a delete marker. Writes fail with kReadOnly. A listing is one of all versions, and has a common prefix also
/// where all objects are younger. ListRequest::max_keys is not used. The times are those of the store's clock. Each
/// ObjectInfo has its version.
std::shared_ptr<Store> ViewAsOf(std::shared_ptr<Store> store, WallTime at);

/// Returns the one version `id` of `key` as the only object of a store. Writes fail with kReadOnly, and listings with
/// kUnsupported.
std::shared_ptr<Store> ViewVersion(std::shared_ptr<Store> store, VersionName name);

}  // namespace millrace::object
