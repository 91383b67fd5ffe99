// Adapts a collective to the group of ranks that the checkpoint writer needs.
#pragma once

#include <memory>

#include "millrace/checkpoint/save/rank_exchange.h"
#include "millrace/engine/parallel/collective.h"

namespace millrace::train {

/// Returns a group that sends strings of at most 1 GiB over `group`. Give it a collective of its own (Duplicate()), so
/// that the writer's background thread does not mix with the operations of the training loop.
std::shared_ptr<checkpoint::RankExchange> MakeRankGroup(std::unique_ptr<engine::Collective> group);

}  // namespace millrace::train
