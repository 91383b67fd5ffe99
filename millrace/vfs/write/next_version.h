// Name and metadata of a version that is not published yet.
#pragma once

#include <optional>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/vfs/metadata/attributes.h"

namespace millrace::vfs {

/// What a Writer's next version has besides its bytes, and what the store may know of it. A value type. The Writer's
/// mutex guards it.
struct NextVersion {
  std::string key;
  WallTime named{};        ///< when the content got this key, as StagedRecord::saved
  bool exclusive = false;  ///< the key must not exist when this version is published
  bool attempted = false;  ///< an attempt to publish may have reached the store
  /// The ETag of the object that an attempt under way makes, if the attempt replaces the base; empty: not known.
  std::string expected_etag;

  std::optional<UserMetadata> metadata;  ///< nothing: the base's, which nobody has asked for yet
  std::string content_type;              ///< of the base; known once `metadata` is
  bool times_outdated = false;           ///< the bytes changed, so the times in the base's metadata do not hold
  bool metadata_changed = false;         ///< since metadata was last sent
};

}  // namespace millrace::vfs
