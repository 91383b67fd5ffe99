// The data of the endpoint: objects, parts and uploads as plain values. Journal records contain them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/s3d/protocol/checksum.h"
#include "millrace/s3d/storage/blob.h"

namespace millrace::s3d {

/// Header fields that are stored with an object and returned with it: content-type, cache-control, x-amz-meta-*, …
/// Names are in lower case and sorted.
using Attributes = std::vector<std::pair<std::string, std::string>>;

/// One version of an object. Immutable. Readers that hold it keep its bytes on disk.
struct Object {
  std::uint64_t size = 0;
  WallTime modified;  ///< whole milliseconds
  std::string etag;   ///< without quotes
  Attributes attributes;
  std::optional<StoredChecksum> checksum;
  std::vector<std::uint64_t> part_sizes;  ///< in order; empty unless it was a multipart upload
  Extents extents;
};
using ObjectPtr = std::shared_ptr<const Object>;

/// One uploaded part.
struct StoredPart {
  std::uint64_t size = 0;
  WallTime modified;
  std::string etag;
  std::string checksum;  ///< base64, of the upload's checksum_kind; empty: none was given
  Extents extents;
};

/// A multipart upload that is neither completed nor aborted.
struct Upload {
  WallTime initiated;
  Attributes attributes;
  std::optional<ChecksumKind> checksum_kind;
  ChecksumType checksum_type = ChecksumType::kComposite;
  std::map<int, StoredPart> parts;
};

}  // namespace millrace::s3d
