// The options of the optimizers. Plain data, without libtorch, so that job files have the same.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace millrace::engine {

struct NamedParameter;

/// optim/adamw.h has the algorithm.
struct AdamwOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  bool operator==(const AdamwOptions&) const = default;
};
/// optim/lamb.h has the algorithm. The defaults are FusedLAMB's.
struct LambOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0.01;
  bool operator==(const LambOptions&) const = default;
};
/// optim/sgd.h has the algorithm.
struct SgdOptions {
  double momentum = 0.9;  ///< 0: none, and no state is kept for it
  bool nesterov = false;
  double weight_decay = 0;  ///< coupled: added to the gradient, so that it enters the momentum
  bool operator==(const SgdOptions&) const = default;
};

/// The rules that differ between the parameters of an optimizer.
struct ParameterRules {
  std::vector<std::string> no_decay = {};  ///< globs over parameter names
  /// LoRA+ (Hayou et al. 2024): the learning rate of the matrices B of adapters, divided by that of A.
  double loraplus_lr_ratio = 1;

  /// Returns whether weight decay applies to a parameter. It does not to parameters with fewer than two dimensions
  /// (biases, weights of norms), nor to those that a glob of no_decay matches.
  bool Decays(const NamedParameter& parameter) const;
  /// Returns the factor of a parameter's learning rate. As in PEFT's create_loraplus_optimizer, loraplus_lr_ratio is
  /// also for trained parameters with fewer than two dimensions: the bias of a classifier.
  double LrRatioOf(const NamedParameter& parameter) const;
  bool operator==(const ParameterRules&) const = default;
};

/// The storage of an optimizer's state, to need less memory of a GPU. It computes in float32 and rounds stochastically
/// what it keeps in bfloat16. The random bits of an element depend on the seed, the step and the element only, so a
/// run's bits are the same under any division among ranks and after a resume.
struct StateStorage {
  bool bf16_moments = false;
  /// A bfloat16 model has no master copy: each step rounds the new weights.
  bool rounds_weights = false;
  std::uint64_t seed = 0;
  /// Moments and master copy are in the host's memory, where kernels of the GPU read and write them. Bits are the same.
  /// On a CPU this changes nothing.
  bool on_host = false;
  bool operator==(const StateStorage&) const = default;
};

/// The name of an optimizer, and its options. MakeOptimizer() (optim/make_optimizer.h) makes it.
struct OptimizerOptions {
  std::variant<AdamwOptions, LambOptions, SgdOptions> method;
  ParameterRules rules = {};
  StateStorage storage = {};
  bool operator==(const OptimizerOptions&) const = default;
};
/// "adamw", "lamb" or "sgd"
std::string_view OptimizerName(const OptimizerOptions& options);
/// Chooses the optimizer of a name, with its defaults, if `options` has another one. Does nothing for other names.
void ChooseOptimizer(std::string_view name, OptimizerOptions& options);

}  // namespace millrace::engine
