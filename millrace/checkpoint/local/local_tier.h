// Checkpoints on the machine's own disk, made often, and the choice between them and the store's at a restart.
#pragma once

#include <memory>
#include <string>

#include "millrace/checkpoint/checkpoint.h"

namespace millrace::checkpoint {

/// What tells one tier.path from every other one, whatever paths and machines it is seen from: a file in it.
inline constexpr char kMachineToken[] = ".millrace-machine";

/// Where the checkpoints of a run that saves to `url` lie under tier.path: a folder of its own, so that no run finds
/// another one's. tier.path is a managed folder (base/files/managed_folder.h): fails if it holds anything else, or
/// belongs to another user, who could have a run start from other weights. Where there is no such folder and none can
/// be made, nothing is found there, and saves fail. Writes there are not flushed to the disk: they survive the process,
/// not the machine.
Result<object::Location> LocateLocal(const LocalTier& tier, std::string_view url);

/// Collective: opens, on every rank, the newest checkpoint that is in the store, or on the local disk with all of its
/// files in sight of every rank and every byte right (each rank reads a share of them); with LocalTier::machines, on
/// any of their disks. Of one step in both places the local one. Local ones of later steps, which not all ranks have
/// any more, are removed: the run will save those steps again. `tier` nothing: the store alone.
struct Newest {
  std::unique_ptr<Reader> reader;  ///< null when there is none at all
  Tier tier = Tier::kStore;
  bool in_store = true;  ///< its step is committed there too
};
Result<Newest> OpenNewest(object::Connection& connection, Group& group, std::string_view url,
                          const std::optional<LocalTier>& tier, const Logger& log, object::Call call = {});

}  // namespace millrace::checkpoint
