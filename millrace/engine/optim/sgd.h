// Stochastic gradient descent with momentum, as torch.optim.SGD computes it without dampening.
#pragma once

#include "millrace/engine/optim/blocks.h"
#include "millrace/engine/optim/optimizer.h"
#include "millrace/engine/options/optimizer_options.h"

namespace millrace::engine {

/// Keeps one tensor per parameter: momentum. With g = gradient + weight_decay · weight,
///   momentum = options.momentum · momentum + g
///   weight -= lr · momentum, or lr · (g + options.momentum · momentum) with nesterov.
/// A step is one pass over memory.
class Sgd final : public Optimizer {
 public:
  explicit Sgd(ParameterBuffer& parameters, SgdOptions options = {}, ParameterRules rules = {},
               const StateStorage& storage = {});
  std::string_view name() const override { return "sgd"; }

 private:
  void Update(double lr, double scale) override;
  void UpdateFused(double lr, double scale);
  void UpdateOnGpu(double lr, double scale);
  void UpdateReference(const UniformRun& run, double lr, double scale);

  const SgdOptions options_;
  const std::vector<UniformRun> runs_;
  const RunBlocks blocks_;  ///< of runs_
};

}  // namespace millrace::engine
