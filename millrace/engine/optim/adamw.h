// AdamW (Loshchilov, Hutter 2019) over a model's buffers: decoupled weight decay, bias correction, epsilon outside the
// square root. Decay applies only to parameters with two or more dimensions: the weights of norms are scales.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/engine/parameters/parameter_buffer.h"

namespace millrace::engine {

struct AdamwOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
};

/// A tensor of the optimizer's state that belongs to one parameter. The tensor is a view.
struct NamedState {
  std::string name;  ///< "exp_avg/model.norm.weight"
  at::Tensor tensor;
  const NamedParameter* parameter = nullptr;  ///< whose slice it belongs to; valid as long as the buffer
};

/// Keeps two float32 moments per parameter, and for bfloat16 models a float32 master copy of the weights. One thread at
/// a time.
/// REQUIRES: `parameters` has gradients and outlives this object.
class Adamw {
 public:
  Adamw(ParameterBuffer& parameters, AdamwOptions options);

  /// Returns the norm of all gradients times `scale`. Sums in double, in an order that does not depend on threads.
  double GradientNorm(double scale) const;
  /// Updates the weights with gradients · scale and zeroes the gradients, in one pass over memory. The caller includes
  /// clipping and the division by the number of loss tokens in `scale`.
  void Step(double lr, double scale);

  /// Returns the number of updates so far. It is part of the state: bias correction depends on it.
  std::int64_t steps() const { return steps_; }
  /// Returns exp_avg/… and exp_avg_sq/… of every parameter, and master/… if there is a master copy.
  std::vector<NamedState> State();
  /// Sets steps(). Call it after the tensors of State() have been filled from a checkpoint.
  void Restore(std::int64_t steps) { steps_ = steps; }
  /// Copies the model's weights into the master copy. Call it after the weights were replaced, but State() was not.
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

/// Returns the factor that scales a gradient of norm `norm` down to `limit`; 1 if it is not longer, or `limit` is 0.
double ClipScale(double norm, double limit);

}  // namespace millrace::engine
