// A server-side copy of any size.
#pragma once

#include <optional>
#include <string>

#include "millrace/object/store.h"
#include "millrace/vfs/metadata/attributes.h"
#include "millrace/vfs/staging/upload_ledger.h"

namespace millrace::vfs {

struct VersionCopy {
  bool if_none_match = false;            ///< of the destination
  std::optional<UserMetadata> metadata;  ///< of the copy; nothing: the source's
  bool unique = false;                   ///< no other object has these metadata
};

/// Copies one version of an object within the store. The destination may be the source, to change its metadata. An
/// object that is too large for one Copy is copied in parts, many at the same time, in an upload that `ledger` records.
/// Its `source` must come from a Head, whose metadata and content type are used. If the answer of a copy is lost, the
/// copy is recognized by its metadata and its ETag, or by the metadata alone if `unique`. Blocks.
/// Errors: kStale if the source has another version now; kAlreadyExists if `if_none_match` does not hold.
Result<object::PutResult> CopyVersion(object::Store& store, UploadLedger* ledger, const object::ObjectInfo& source,
                                      const std::string& destination, VersionCopy how, const object::Call& call);

}  // namespace millrace::vfs
