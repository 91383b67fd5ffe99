// Checkpoints on the machine's own disk, made often, and the choice between them and the store's at a restart.
#pragma once

#include <memory>
#include <string>

#include "millrace/checkpoint/exchange/group.h"
#include "millrace/checkpoint/local/machines.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/tier/local_tier_options.h"
#include "millrace/checkpoint/tier/tier.h"

namespace millrace::checkpoint {

/// Collective: opens, on every rank, the newest checkpoint that is in the store, or on the local disk with all of its
/// files in sight of every rank and every byte right (each rank reads a share of them); with `machines`, on any of
/// their disks. Of one step in both places the local one. Local ones of later steps, which not all ranks have any more,
/// are removed: the run will save those steps again. `tier` nothing: the store alone.
struct Newest {
  std::unique_ptr<Reader> reader;  ///< null when there is none at all
  Tier tier = Tier::kStore;
  bool in_store = true;  ///< its step is committed there too
};
Result<Newest> OpenNewest(object::Connection& connection, Group& group, std::string_view url,
                          const std::optional<LocalTier>& tier, std::shared_ptr<Machines> machines, const Logger& log,
                          object::Call call = {});

}  // namespace millrace::checkpoint
