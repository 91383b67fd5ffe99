// LAMB (You et al. 2019, "Large Batch Optimization for Deep Learning"), as NVIDIA apex's FusedLAMB computes it for
// BERT: bias correction, gradient averaging, decoupled weight decay inside the trust ratio. FusedLAMB's clipping by the
// global norm (max_grad_norm) is the caller's: it is part of Step()'s `scale`.
#pragma once

#include "millrace/engine/optim/optimizer.h"

namespace millrace::engine {

/// The defaults are FusedLAMB's.
struct LambOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0.01;
};

/// Keeps two moments per parameter: exp_avg and exp_avg_sq. For each parameter tensor,
///   update = exp_avg/(1 - beta1^t) / (sqrt(exp_avg_sq/(1 - beta2^t)) + eps) + weight_decay · weight
///   weight -= lr · trust ratio · update.
/// The trust ratio is |weight| / |update|, or 1 if one of the norms is 0. As in FusedLAMB without use_nvlamb, it is
/// also 1 for parameters that do not decay: these follow Adam. A step is two passes over memory, because a tensor's
/// ratio needs the whole tensor.
class Lamb final : public Optimizer {
 public:
  explicit Lamb(ParameterBuffer& parameters, LambOptions options = {}, std::vector<std::string> no_decay = {});
  std::string_view name() const override { return "lamb"; }

 private:
  /// Part of one parameter. Threads share the blocks of all parameters, because many parameters are smaller than one.
  struct Block {
    std::size_t parameter;
    std::int64_t begin, count;
  };
  void Update(double lr, double scale) override;
  void UpdateFused(double lr, double scale);
  void UpdateReference(std::size_t parameter, double lr, double scale);

  const LambOptions options_;
  std::vector<double> decay_;  ///< of each parameter
  std::vector<Block> blocks_;  ///< in the order of parameters
  at::Tensor moment1_, moment2_;
};

}  // namespace millrace::engine
