// What ranks tell rank 0, and what it makes of it for all.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/checkpoint/exchange/group.h"

namespace millrace::checkpoint {

/// Collective: `answer` of rank 0, to what all ranks have said in their order, on all ranks; an error of it too, as
/// kUnavailable. `answer` may let exceptions of the JSON library pass: what a rank says is not what it should be.
Result<Json> Agree(Group& group, std::string mine,
                   const std::function<Result<Json>(const std::vector<std::string>&)>& answer);

}  // namespace millrace::checkpoint
