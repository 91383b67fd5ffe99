// What all optimizers have in common: state by names, a master copy of the weights, and which
// parameters decay or learn faster. MakeOptimizer (make_optimizer.h) makes one.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/engine/ops/cuda/tensors/optimizer.h"
#include "millrace/engine/parameters/parameter_buffer.h"

namespace millrace::engine {

/// A tensor of the optimizer's state that belongs to the part of a parameter that this rank owns. The tensor is a view.
struct NamedState {
  std::string name;                   ///< "exp_avg/model.norm.weight"
  at::Tensor tensor;                  ///< [piece->elements()] float32
  const OwnedPiece* piece = nullptr;  ///< valid as long as the buffer
};

/// What differs between the parameters that an optimizer updates.
struct ParameterRules {
  std::vector<std::string> no_decay = {};  ///< globs over parameter names
  /// LoRA+ (Hayou et al. 2024): the learning rate of the matrices B of adapters is so many times that of A.
  double loraplus_lr_ratio = 1;

  /// Returns whether weight decay applies to a parameter. It does not to parameters with fewer than two dimensions
  /// (biases, weights of norms), nor to those that a glob of no_decay matches.
  bool Decays(const NamedParameter& parameter) const;
  /// Returns the factor of a parameter's learning rate. As in PEFT's create_loraplus_optimizer, loraplus_lr_ratio is
  /// also for trained parameters with fewer than two dimensions: the bias of a classifier.
  double LrRatioOf(const NamedParameter& parameter) const;
};

/// Updates the weights that this rank owns from their gradients. Its state is float32, and there is state for owned
/// elements of trainable parameters only. For models of another type it includes a float32 master copy of the weights.
/// Results do not depend on the number of threads. One thread at a time. REQUIRES: the ParameterBuffer has gradients
/// and outlives this object.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Returns the name in job files and checkpoints: "adamw".
  virtual std::string_view name() const = 0;
  /// Updates the owned weights with gradients · scale and zeroes the owned gradients. The caller includes clipping and
  /// the division by the number of loss tokens in `scale`. Throws ErrorException if a rank is lost.
  void Step(double lr, double scale);
  /// Zeroes the owned gradients and makes no update.
  void Skip();

  /// Returns the number of updates so far. It is part of the state: bias correction depends on it.
  std::int64_t steps() const { return steps_; }
  /// Returns KIND/NAME of every owned piece for each kind of state, and master/NAME if there is a master copy.
  std::vector<NamedState> State();
  /// Sets steps(). Call it after the tensors of State() have been filled from a checkpoint.
  void Restore(std::int64_t steps) { steps_ = steps; }
  /// Copies the owned weights into the master copy. Call it after the weights were replaced, but State() was not.
  void TakeWeights();

 protected:
  /// Consecutive owned elements under the same rules.
  struct UniformRun {
    std::int64_t begin = 0;                ///< first element of the state
    at::Tensor values, master, gradients;  ///< [n]; `master` is `values` for float32 models
    double decay = 0;
    double lr_ratio = 1;  ///< factor of the learning rate
    std::int64_t size() const { return values.numel(); }
  };

  /// `weight_decay`: of the parameters that decay.
  Optimizer(ParameterBuffer& parameters, double weight_decay, ParameterRules rules);
  /// Returns a new float32 tensor [parameters.owned_trained_size()] of zeros. State() has it as `kind`.
  at::Tensor AddState(std::string kind);
  /// Returns the owned elements in runs that are as long as possible. A run may include the gaps between parameters,
  /// whose gradients and weights are 0.
  std::vector<UniformRun> UniformRuns() const;
  /// Returns a piece of a parameter as a run of its own.
  UniformRun RunOf(const OwnedPiece& piece) const;

  const ParameterBuffer& parameters() const { return parameters_; }
  /// Returns whether the fused kernels of the CPU can run.
  bool HasFused() const;
  /// Returns whether the parameters are on a GPU and this program has kernels for it.
  bool HasCuda() const;
  /// Returns a run for kernels of a GPU, without moments. `lr`: of this run.
  static cuda::OptimizerRun GpuRun(const UniformRun& run, double lr);
  /// Rounds the master copy of a run into the model's weights.
  static void RoundMaster(const UniformRun& run);

 private:
  /// Makes update number steps(). Without a graph.
  virtual void Update(double lr, double scale) = 0;

  struct StateKind {
    std::string name;
    at::Tensor values;
  };
  /// Owned elements of one span, from `begin` up to `end`.
  struct Range {
    std::size_t span;
    std::int64_t begin, end;
    double decay, lr_ratio;
  };
  Range RangeOf(const OwnedPiece& piece) const;
  UniformRun MakeRun(const Range& range) const;

  ParameterBuffer& parameters_;
  const double weight_decay_;
  const ParameterRules rules_;
  std::int64_t steps_ = 0;
  std::vector<StateKind> state_;
  at::Tensor master_;  ///< [parameters.owned_trained_size()] float32; undefined for float32 models
};

/// Returns the factor that scales a gradient of norm `norm` down to `limit`; 1 if it is not longer, or `limit` is 0.
double ClipScale(double norm, double limit);

}  // namespace millrace::engine
