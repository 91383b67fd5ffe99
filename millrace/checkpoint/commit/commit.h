// The commit point: docs/formats/checkpoint.md, "Saving". Shared by everything that makes a checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/checkpoint/format/layout.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/object/store.h"

namespace millrace::checkpoint {

/// What to do with a store that ignores the conditions of writes: nothing here is safe on it.
inline constexpr std::string_view kConditionAdvice =
    "checkpoints need a store that honours them, as Amazon S3, MinIO and `millrace s3d` do, or a folder";

/// The ETag of the fence that a manifest of the step must replace, "" where nothing lies. kAlreadyExists when the step
/// is committed. To be asked before the first file of an attempt is written.
Result<std::string> ExpectedFence(object::Store& store, const Layout& layout, std::uint64_t step,
                                  object::Call call = {});

/// What became of the put of a manifest.
struct CommitOutcome {
  Status status;
  bool is_unknown = false;  ///< whether the put may still take effect; the attempt's files must then stay
};
/// Puts the manifest of manifest.step on the condition that nobody else has done anything to the step since
/// ExpectedFence. Blocks, and is not to be cancelled: it takes two or three small requests.
CommitOutcome CommitManifest(object::Store& store, const Layout& layout, const Manifest& manifest,
                             const std::string& expected_fence);

}  // namespace millrace::checkpoint
