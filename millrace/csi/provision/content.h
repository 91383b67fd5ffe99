// The objects of a volume: copying and deleting all below a prefix.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/base/result.h"
#include "millrace/object/store.h"

namespace millrace::csi {

/// A prefix of a bucket.
struct ContentFolder {
  object::Store& store;
  std::string bucket, prefix;
};

/// Copies every object below `from` on the server, several at a time. Skips those that an earlier call copied: objects
/// of the same size whose ETag is equal, or that are ten minutes younger. Returns the bytes of all objects. REQUIRES:
/// nobody else writes below `to`.
Result<std::uint64_t> CopyContent(const ContentFolder& from, const ContentFolder& to, const object::Call& call);

/// Deletes every object below the prefix, and aborts the multipart uploads there.
Status DeleteContent(const ContentFolder& folder, const object::Call& call);

/// Returns whether there is any object below the prefix.
Result<bool> HasContent(object::Store& store, const std::string& prefix, const object::Call& call);

}  // namespace millrace::csi
