// The base of all optimizers: state by names, a master copy of the weights, and which parameters decay or learn faster.
// MakeOptimizer (make_optimizer.h) makes one.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/engine/ops/cpu/kernels.h"
#include "millrace/engine/ops/cuda/tensors/optimizer.h"
#include "millrace/engine/options/optimizer_options.h"
#include "millrace/engine/parameters/parameter_buffer.h"

namespace millrace::engine {

/// A tensor of the optimizer's state that belongs to the part of a parameter that this rank owns. The tensor is a view.
struct NamedState {
  std::string name;                   ///< "exp_avg/model.norm.weight"
  at::Tensor tensor;                  ///< [piece->elements()], of the type and in the memory that StateStorage says
  const OwnedPiece* piece = nullptr;  ///< valid as long as the buffer
};

/// Updates the weights that this rank owns from their gradients. There is state for owned elements of trainable
/// parameters only. It is float32 unless StateStorage says otherwise, and for models of another type it includes a
/// float32 master copy of the weights. Results do not depend on the number of threads. One thread at a time.
/// REQUIRES: the ParameterBuffer has gradients and outlives this object.
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
    at::Tensor values, master, gradients;  ///< [n]; `master` is `values` for float32 models; undefined: none
    double decay = 0;
    double lr_ratio = 1;  ///< factor of the learning rate
    // Where something is rounded, a run is a piece of one parameter.
    std::uint64_t rounding_key = 0;    ///< of the parameter
    std::int64_t first = 0;            ///< first element in the parameter's slice
    cpu::ElementNumbers numbers = {};  ///< of the slice
    std::int64_t size() const { return values.numel(); }
  };
  static constexpr std::size_t kMaxMoments = 2;
  /// Elements of a run as updates take them: in float32.
  struct Part {
    std::int64_t from = 0, count = 0;  ///< elements of the run
    float* master = nullptr;           ///< the weights
    float* gradients = nullptr;
    std::array<float*, kMaxMoments> moments = {};  ///< in the order of AddState(); null: there are fewer
    at::Tensor Master() const { return Tensor(master); }
    at::Tensor Gradients() const { return Tensor(gradients); }
    at::Tensor Moment(std::size_t i) const { return Tensor(moments[i]); }

   private:
    at::Tensor Tensor(float* data) const { return at::from_blob(data, {count}, at::kFloat); }
  };

  /// `weight_decay`: of the parameters that decay. Throws c10::Error if `storage` rounds weights that are not
  /// bfloat16, or keeps the state of a GPU on the host and there are no kernels for it.
  Optimizer(ParameterBuffer& parameters, double weight_decay, ParameterRules rules, const StateStorage& storage);
  /// Makes a tensor [parameters.owned_trained_size()] of zeros for a moment. State() has it as `kind`.
  void AddState(std::string kind);
  /// Calls update(part) for all of elements [from, from + count) of a run on a CPU, one part after the other. What is
  /// kept in bfloat16 is widened before the call and rounded after it; of the weights, the update may write anything
  /// into run.values then.
  void ForEachPart(const UniformRun& run, std::int64_t from, std::int64_t count,
                   const std::function<void(const Part&)>& update) const;
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
  /// Returns a run for kernels of a GPU. `lr`: of this run.
  cuda::OptimizerRun GpuRun(const UniformRun& run, double lr) const;
  bool bf16_moments() const { return storage_.bf16_moments; }
  /// Rounds the master copy of a run, if it has one, into the model's weights.
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
    std::uint64_t rounding_key;
    std::int64_t first;
    cpu::ElementNumbers numbers;
  };
  bool Rounds() const { return storage_.bf16_moments || storage_.rounds_weights; }
  /// Returns the key of a run's random bits in this step.
  std::uint64_t StepKey(const UniformRun& run) const;
  /// Returns zeros for the owned elements, where `storage` wants them.
  at::Tensor MakeState(at::ScalarType type) const;
  Range RangeOf(const OwnedPiece& piece) const;
  UniformRun MakeRun(const Range& range) const;

  ParameterBuffer& parameters_;
  const double weight_decay_;
  const ParameterRules rules_;
  const StateStorage storage_;
  std::int64_t steps_ = 0;
  std::vector<StateKind> state_;
  at::Tensor master_;  ///< [parameters.owned_trained_size()] float32; undefined: none
};

/// Returns the factor that scales a gradient of norm `norm` down to `limit`; 1 if it is not longer, or `limit` is 0.
double ClipScale(double norm, double limit);

}  // namespace millrace::engine
