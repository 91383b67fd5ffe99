#include "millrace/vfs/write/next_version.h"

#include <utility>

namespace millrace::vfs {

NextVersion NextVersion::Of(const StagedRecord& record) {
  return {.key = record.key,
          .named = record.saved,
          .exclusive = record.exclusive,
          .attempted = true,
          .expected_etag = record.expected,
          .metadata = record.metadata,
          .content_type = record.content_type};
}

void NextVersion::OnContentChanged() {
  times_outdated = true;
  expected_etag.clear();
  if (metadata) ForgetTimes(*metadata);
}

void NextVersion::SetMetadata(UserMetadata changed) {
  metadata = std::move(changed);
  metadata_changed = true;
  expected_etag.clear();
}

void NextVersion::SetMetadataOfBase(object::ObjectInfo base) {
  if (metadata) return;
  metadata = std::move(base.metadata);
  if (times_outdated) ForgetTimes(*metadata);
  content_type = std::move(base.content_type);
}

object::PutOptions NextVersion::TakeOptions() {
  metadata_changed = false;
  return {.if_match = {}, .content_type = content_type, .metadata = *metadata};
}

void NextVersion::Describe(StagedRecord& record) const {
  record.metadata = metadata;
  record.content_type = content_type;
  record.expected = expected_etag;
}

}  // namespace millrace::vfs
