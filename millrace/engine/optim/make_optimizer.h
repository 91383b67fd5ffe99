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

/// REQUIRES: as Optimizer.
/// Errors: kInvalidArgument if a glob of no_decay matches no parameter. Throws what libtorch throws.
Result<std::unique_ptr<Optimizer>> MakeOptimizer(ParameterBuffer& parameters, const OptimizerOptions& options);

}  // namespace millrace::engine
