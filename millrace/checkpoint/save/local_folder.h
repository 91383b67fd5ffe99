// The folder of a run's checkpoints on the machine's own disk.
#pragma once

#include <string_view>

#include "millrace/base/result.h"
#include "millrace/checkpoint/save/local_tier_options.h"
#include "millrace/object/location.h"

namespace millrace::checkpoint {

/// A file in the folder of local checkpoints. Its content is unique, so ranks that read the same content share a disk.
inline constexpr char kMachineToken[] = ".millrace-machine";

/// Returns the folder below tier.path for the run that saves to `url`. Every run has a folder of its own, so no run
/// finds another one's checkpoints. tier.path is a managed folder (base/files/managed_folder.h). If it does not exist
/// and cannot be created, the call succeeds all the same: nothing is found there, and saves fail. Writes to the folder
/// are not flushed to the disk: they survive the process, but not the machine.
/// Errors: kInvalidArgument or kPermissionDenied if tier.path holds foreign files or belongs to another user. That user
/// could make the run start from other weights.
Result<object::Location> LocateLocal(const LocalTierOptions& tier, std::string_view url);

}  // namespace millrace::checkpoint
