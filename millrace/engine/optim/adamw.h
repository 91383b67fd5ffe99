// AdamW (Loshchilov, Hutter 2019) over a model's buffers: decoupled weight decay, bias correction, epsilon outside the
// square root. Decay applies to parameters with two or more dimensions only: norms' weights are scales, not directions.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/engine/parameters.h"

namespace millrace::engine {

struct AdamwOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
};

/// A tensor of the optimizer's state that belongs to a parameter: a view.
struct NamedState {
  std::string name;  ///< "exp_avg/model.norm.weight"
  at::Tensor tensor;
};

/// Keeps two float32 moments per parameter, and for bfloat16 models a float32 master copy of the weights. `parameters`
/// must have gradients and outlive it. One thread at a time.
class Adamw {
 public:
  Adamw(ParameterBuffer& parameters, AdamwOptions options);

  /// Norm over all of (gradients · scale), summed in double in an order that does not depend on threads.
  double GradientNorm(double scale) const;
  /// One update with gradients · scale, then zeroes the gradients: a single pass over memory. The caller folds clipping
  /// and the division by the number of loss tokens into `scale`.
  void Step(double lr, double scale);

  /// Updates so far; part of the state, because bias correction depends on it.
  std::int64_t steps() const { return steps_; }
  /// exp_avg/… and exp_avg_sq/… of every parameter, master/… where there is a master copy.
  std::vector<NamedState> State();
  /// After the tensors of State() have been filled from a checkpoint.
  void Restore(std::int64_t steps) { steps_ = steps; }
  /// After the model's weights were replaced by others than State()'s: takes them over into the master copy.
  void TakeWeights();

 private:
  /// Consecutive elements under the same decay.
  struct Run {
    std::int64_t begin, end;
    bool decay;
  };
  void StepFused(const Run& run, double lr, double scale);
  void StepReference(const Run& run, double lr, double scale);

  ParameterBuffer& parameters_;
  const AdamwOptions options_;
  std::vector<Run> runs_;
  std::int64_t steps_ = 0;
  at::Tensor moment1_, moment2_, master_;  ///< [parameters.size()]; master_ is values() itself for float32 models
};

/// The scale that brings a gradient of norm `norm` to at most `limit` (0: no limit).
double ClipScale(double norm, double limit);

/// Learning rate over the steps of a run.
struct Schedule {
  enum class Kind { kConstant, kCosine };
  Kind kind = Kind::kCosine;
  double lr = 3e-4, min_lr = 0;
  std::uint64_t warmup_steps = 0, total_steps = 0;

  /// Of step 0, 1, …: (step + 1)/warmup_steps of lr while warming up; then constant, or half a cosine down to min_lr at
  /// total_steps.
  double At(std::uint64_t step) const;
};

}  // namespace millrace::engine
