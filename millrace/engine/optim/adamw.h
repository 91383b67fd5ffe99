// AdamW (Loshchilov, Hutter 2019): decoupled weight decay, bias correction, epsilon outside the square root.
#pragma once

#include "millrace/engine/ops/cpu/kernels.h"
#include "millrace/engine/optim/blocks.h"
#include "millrace/engine/optim/optimizer.h"
#include "millrace/engine/options/optimizer_options.h"

namespace millrace::engine {

/// Keeps two moments per parameter: exp_avg and exp_avg_sq. A step is one pass over memory.
class Adamw final : public Optimizer {
 public:
  explicit Adamw(ParameterBuffer& parameters, AdamwOptions options = {}, ParameterRules rules = {},
                 const StateStorage& storage = {});
  std::string_view name() const override { return "adamw"; }

 private:
  void Update(double lr, double scale) override;
  void UpdateFused(double lr, double scale);
  void UpdateOnGpu(double lr, double scale);
  cpu::AdamwStep StepOf(double scale) const;
  void UpdateReference(const UniformRun& run, double lr, double scale);

  const AdamwOptions options_;
  const std::vector<UniformRun> runs_;
  const RunBlocks blocks_;  ///< of runs_
};

}  // namespace millrace::engine
