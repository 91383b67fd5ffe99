// The commit point of a checkpoint: docs/formats/checkpoint.md, "Saving".
#pragma once

#include <cstdint>
#include <string>

#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/object/store.h"

namespace millrace::checkpoint {

/// For messages about a store that ignores the conditions of writes. Neither saving nor collecting is safe on it.
inline constexpr std::string_view kConditionAdvice =
    "checkpoints need a store that honours them, as Amazon S3, MinIO and `millrace s3d` do, or a folder";

/// Returns ", by ann@node-7 (millrace-train, 2026-…)"; an empty text if the manifest names no host.
std::string WhoWrote(const Manifest& manifest);

/// Returns the ETag of the fence that the step's manifest must replace; empty if there is no object at the manifest's
/// key. Call it before the attempt writes its first file.
/// Errors: kAlreadyExists if the step is committed.
Result<std::string> ExpectedFence(object::Store& store, const CheckpointKeys& keys, std::uint64_t step,
                                  object::Call call = {});

/// The outcome of the put of a manifest.
struct CommitOutcome {
  Status status;
  bool is_unknown = false;  ///< whether the put may still take effect; the attempt's files must then stay
  bool is_lost = false;     ///< whether the save failed for another run, so that later ones will fail, too
};
/// Puts the manifest of manifest.step, on condition that the object at its key is still the one that ExpectedFence
/// returned. Blocks for two or three small requests. Cannot be cancelled.
CommitOutcome CommitManifest(object::Store& store, const CheckpointKeys& keys, const Manifest& manifest,
                             const std::string& expected_fence);

}  // namespace millrace::checkpoint
