// The choice of the checkpoint that a run resumes from: a local one or the store's.
#pragma once

#include <memory>
#include <string>

#include "millrace/checkpoint/local/peer_machines.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/save/checkpoint_tier.h"
#include "millrace/checkpoint/save/local_tier_options.h"
#include "millrace/checkpoint/save/rank_exchange.h"

namespace millrace::checkpoint {

/// The checkpoint that a run resumes from.
struct NewestCheckpoint {
  std::unique_ptr<Reader> reader;  ///< null if there is no checkpoint
  CheckpointTier tier = CheckpointTier::kStore;
  bool in_store = true;  ///< whether its step is committed in the store too
};

/// Collective. Opens the newest checkpoint of the store and the local tier on every rank. A local checkpoint counts
/// only if every rank sees all of its files and every byte is right; each rank reads a share of the bytes. With
/// `machines`, the files may be on any of their disks. If a step is in both tiers, the local one is opened. Without
/// `tier`, looks in the store alone. Removes local checkpoints of later steps, since the run will save those steps
/// again. Blocks.
Result<NewestCheckpoint> OpenNewest(object::Connection& connection, RankExchange& group, std::string_view url,
                                    const std::optional<LocalTierOptions>& tier, std::shared_ptr<PeerMachines> machines,
                                    const Logger& log, object::Call call = {});

}  // namespace millrace::checkpoint
