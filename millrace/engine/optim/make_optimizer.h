// Makes the optimizer that options name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/engine/optim/adamw.h"
#include "millrace/engine/optim/lamb.h"
#include "millrace/engine/optim/sgd.h"

namespace millrace::engine {

struct OptimizerOptions {
  std::variant<AdamwOptions, LambOptions, SgdOptions> method;
  std::vector<std::string> no_decay = {};  ///< see WeightDecay
};

/// `ranks`: over which LAMB sums the norms of divided parameters. Borrows the groups. All ranks of ranks.model call it.
/// REQUIRES: as Optimizer.
/// Errors: kInvalidArgument if a glob of no_decay matches no parameter of the model, on any rank; kUnavailable if a
/// rank is lost. Throws what libtorch throws.
Result<std::unique_ptr<Optimizer>> MakeOptimizer(ParameterBuffer& parameters, const OptimizerOptions& options,
                                                 const StateRanks& ranks = {});

}  // namespace millrace::engine
