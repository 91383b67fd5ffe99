// LAMB (You et al. 2019, "Large Batch Optimization for Deep Learning"), as NVIDIA apex's FusedLAMB computes it for
// BERT: bias correction, gradient averaging, decoupled weight decay inside the trust ratio. FusedLAMB's clipping by the
// global norm (max_grad_norm) is the caller's: it is part of Step()'s `scale`.
#pragma once

#include "millrace/engine/ops/cpu/kernels.h"
#include "millrace/engine/optim/blocks.h"
#include "millrace/engine/optim/optimizer.h"
#include "millrace/engine/options/optimizer_options.h"
#include "millrace/engine/parameters/state_ranks.h"

namespace millrace::engine {

/// Keeps two moments per parameter: exp_avg and exp_avg_sq. For each parameter tensor,
///   update = exp_avg/(1 - beta1^t) / (sqrt(exp_avg_sq/(1 - beta2^t)) + eps) + weight_decay · weight
///   weight -= lr · trust ratio · update.
/// The trust ratio is |weight| / |update|, or 1 if one of the norms is 0. As in FusedLAMB without use_nvlamb, it is
/// also 1 for parameters that do not decay: these follow Adam. A step is two passes over memory, because a tensor's
/// ratio needs the whole tensor. If ranks divide tensors between them, one small all-reduce adds up all norms.
class Lamb final : public Optimizer {
 public:
  explicit Lamb(ParameterBuffer& parameters, LambOptions options = {}, ParameterRules rules = {},
                const StateRanks& ranks = {}, const StateStorage& storage = {});
  std::string_view name() const override { return "lamb"; }

 private:
  /// The owned part of a parameter.
  struct PieceRun {
    UniformRun run;
    std::size_t tensor;  ///< number of the whole tensor that it is a part of
    bool counts;         ///< this rank counts it in the norms
  };
  void Update(double lr, double scale) override;
  cpu::LambStep StepOf(double scale) const;
  void ComputeDirections(double scale);
  void ComputeDirectionsOnGpu(double scale);
  void ComputeDirectionReference(const PieceRun& piece, double scale);
  void AddSquares(const PieceRun& piece, const cpu::LambSquares& squares);
  void SumOverRanks();
  double TrustRatio(const PieceRun& piece) const;
  void Apply(double lr);
  void ApplyOnGpu(double lr);

  const LambOptions options_;
  const StateRanks ranks_;
  std::vector<PieceRun> pieces_;
  RunBlocks blocks_;               ///< of pieces_
  std::vector<std::size_t> tied_;  ///< numbers of whole tensors that two stages of a pipeline hold
  at::Tensor squares_;  ///< [whole tensors, 2] float64: of this step, the sums of squares of weights and updates
};

}  // namespace millrace::engine
