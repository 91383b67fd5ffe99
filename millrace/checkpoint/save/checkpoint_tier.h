// The tier that stores a checkpoint.
#pragma once

namespace millrace::checkpoint {

/// The object store, or a folder on the machine's own disk.
enum class CheckpointTier { kStore, kLocal };

}  // namespace millrace::checkpoint
