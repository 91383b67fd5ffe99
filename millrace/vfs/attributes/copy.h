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
  bool unique = false;                   ///< only this copy has these metadata
};

/// Copies one version of an object within the store, onto itself too where the metadata changes; in parts, many at a
/// time, when it is beyond what one Copy may move (then `source` must be of a Head: its metadata and content type go
/// along), in an upload that `ledger` knows of. Fails with kStale when the source has another version now, with
/// kAlreadyExists when `if_none_match` does not hold. A copy whose answer was lost is known by its metadata and its
/// ETag, or by these alone if they are unique. Blocks.
Result<object::PutResult> CopyVersion(object::Store& store, UploadLedger* ledger, const object::ObjectInfo& source,
                                      const std::string& destination, VersionCopy how, const object::Call& call);

}  // namespace millrace::vfs
