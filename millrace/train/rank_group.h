// The checkpoint writer's view of the ranks.
#pragma once

#include <memory>

#include "millrace/checkpoint/exchange/group.h"
#include "millrace/engine/parallel/collective.h"

namespace millrace::train {

/// Carries strings over a collective of its own, so that the writer's background thread never meets the training loop's
/// operations. Strings are at most 1 GiB.
std::shared_ptr<checkpoint::Group> MakeRankGroup(std::unique_ptr<engine::Collective> group);

}  // namespace millrace::train
