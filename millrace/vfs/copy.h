// A server-side copy of any size.
#pragma once

#include <string>

#include "millrace/object/store.h"

namespace millrace::vfs {

/// Copies one version of an object within the store; in parts when it is beyond what one Copy may move. Fails with
/// kStale when the source has another version now, with kAlreadyExists when `if_none_match` does not hold. Blocks.
Result<object::PutResult> CopyVersion(object::Store& store, const object::ObjectInfo& source,
                                      const std::string& destination, bool if_none_match, const object::Call& call);

}  // namespace millrace::vfs
