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
#include "millrace/engine/options/optimizer_options.h"

namespace millrace::engine {

/// Checks that each glob matches a parameter of the model, on some rank. All ranks of ranks.model call it.
/// Errors: kInvalidArgument, with `key` and the glob; kUnavailable if a rank is lost.
Status CheckGlobs(std::string_view key, const ParameterBuffer& parameters, const std::vector<std::string>& globs,
                  const StateRanks& ranks);

/// `ranks`: over which LAMB sums the norms of divided parameters. Borrows the groups. All ranks of ranks.model call it.
/// REQUIRES: as Optimizer; options.storage.rounds_weights only for bfloat16 parameters.
/// Errors: those of CheckGlobs() for no_decay; kInvalidArgument if all parameters of the model are frozen. Throws what
/// libtorch throws.
Result<std::unique_ptr<Optimizer>> MakeOptimizer(ParameterBuffer& parameters, const OptimizerOptions& options,
                                                 const StateRanks& ranks = {});

}  // namespace millrace::engine
