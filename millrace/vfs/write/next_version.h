// Name and metadata of a version that is not published yet.
#pragma once

#include <optional>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/object/requests.h"
#include "millrace/vfs/metadata/attributes.h"
#include "millrace/vfs/staging/staging_area.h"

namespace millrace::vfs {

/// The name and metadata of a Writer's next version, and what the store may have of it. A value type. The Writer's
/// mutex guards it.
struct NextVersion {
  /// Returns the version that a kept content is to become. An attempt to publish it may have been made.
  static NextVersion Of(const StagedRecord& record);

  /// Call after each change of the content.
  void OnContentChanged();
  void SetMetadata(UserMetadata changed);
  /// Takes the metadata of the base, unless there are some.
  void SetMetadataOfBase(object::ObjectInfo base);
  /// Returns the options of the request that publishes this version. REQUIRES: `metadata`.
  object::PutOptions TakeOptions();
  /// Fills the fields of `record` that describe the metadata.
  void Describe(StagedRecord& record) const;

  std::string key;
  WallTime named{};        ///< when the content got this key, as StagedRecord::saved
  bool exclusive = false;  ///< the key must not exist when this version is published
  bool attempted = false;  ///< an attempt to publish may have reached the store
  bool restored = false;   ///< another process may have published this version
  /// The ETag of the object that the present attempt makes, if it replaces the base; empty: not known.
  std::string expected_etag;

  std::optional<UserMetadata> metadata;  ///< nothing: the base's, which are not read yet
  std::string content_type;              ///< of the base; known once `metadata` is
  bool times_outdated = false;           ///< the bytes changed, so the times in the base's metadata are outdated
  bool metadata_changed = false;         ///< since the metadata were sent last
};

}  // namespace millrace::vfs
