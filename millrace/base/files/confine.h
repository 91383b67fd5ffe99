// The check for names that come out of stored records: rename journals, staging records, manifests, indexes. Someone
// who can write a record chooses the names in it. So no such name is used as a key or a path before this check.
#pragma once

#include <cstddef>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace {

/// S3 allows keys of this many bytes. File systems allow longer paths, but no record of ours needs one.
inline constexpr std::size_t kMaxConfinedBytes = 1024;

/// The way in which CheckConfined() treats the segments between slashes.
enum class NameSegments {
  kPlain,  ///< refuses empty ones, "." and "..", so that the name stays below its root as a path, too
  kAny,    ///< accepts all: for a key that is compared with keys of a listing and never becomes a path
};

/// Checks that `name` names something below `root`.
/// REQUIRES: `root` is empty or ends with '/'. An empty root accepts every relative name.
/// Returns OK if all of these hold:
///   - `name` begins with `root` and continues after it;
///   - `name` is UTF-8 without NUL, of at most kMaxConfinedBytes;
///   - with kPlain, no segment below `root` is empty, "." or "..". One slash at the end, of a directory, is allowed.
/// Errors: kCorrupt; the message quotes the name and says that it is in `record`.
/// Thread-safe. Never blocks.
Status CheckConfined(std::string_view name, std::string_view root, std::string_view record,
                     NameSegments segments = NameSegments::kPlain);

}  // namespace millrace
