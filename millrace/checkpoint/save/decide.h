// Lets rank 0 decide, and gives its decision to all ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/checkpoint/save/rank_exchange.h"

namespace millrace::checkpoint {

/// Collective. Gathers every rank's `mine`, calls `decide` with them in rank order on rank 0, and returns the decision
/// on all ranks. `decide` may let exceptions of the JSON library pass. They mean that a message has another form.
/// Errors: kUnavailable on all ranks, with the message of the error that `decide` returned; those of the exchange.
Result<Json> DecideOnRank0(RankExchange& group, std::string mine,
                           const std::function<Result<Json>(const std::vector<std::string>&)>& decide);

}  // namespace millrace::checkpoint
