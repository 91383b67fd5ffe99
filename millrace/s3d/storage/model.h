// What the endpoint stores: plain values that the journal's records carry and the operations answer from.
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

/// Header fields that are stored with an object and given back with it: content-type, cache-control, x-amz-meta-*, …
/// Names in lower case, sorted.
using Attributes = std::vector<std::pair<std::string, std::string>>;

/// A version of an object. Immutable; readers share it, and with it the bytes, for as long as they need.
struct Object {
  std::uint64_t size = 0;
  WallTime modified;  ///< whole milliseconds
  std::string etag;   ///< without quotes
  Attributes attributes;
  std::optional<StoredChecksum> checksum;
  std::vector<std::uint64_t> part_sizes;  ///< of a multipart object, in order
  Extents extents;
};
using ObjectPtr = std::shared_ptr<const Object>;

/// One uploaded part.
struct Part {
  std::uint64_t size = 0;
  WallTime modified;
  std::string etag;
  std::string checksum;  ///< base64, of the upload's kind; empty when none was given
  Extents extents;
};

/// A multipart upload under way.
struct Upload {
  WallTime initiated;
  Attributes attributes;
  std::optional<ChecksumKind> checksum_kind;
  ChecksumType checksum_type = ChecksumType::kComposite;
  std::map<int, Part> parts;
};

}  // namespace millrace::s3d
