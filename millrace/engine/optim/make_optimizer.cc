#include "millrace/engine/optim/make_optimizer.h"

#include <algorithm>

#include "millrace/base/glob.h"

namespace millrace::engine {
namespace {

std::unique_ptr<Optimizer> Make(ParameterBuffer& parameters, const AdamwOptions& method,
                                const OptimizerOptions& options, const StateRanks&) {
  return std::make_unique<Adamw>(parameters, method, options.rules, options.storage);
}
std::unique_ptr<Optimizer> Make(ParameterBuffer& parameters, const LambOptions& method, const OptimizerOptions& options,
                                const StateRanks& ranks) {
  return std::make_unique<Lamb>(parameters, method, options.rules, ranks, options.storage);
}
std::unique_ptr<Optimizer> Make(ParameterBuffer& parameters, const SgdOptions& method, const OptimizerOptions& options,
                                const StateRanks&) {
  return std::make_unique<Sgd>(parameters, method, options.rules, options.storage);
}

/// Fails if no rank has anything to train.
Status CheckTrained(const ParameterBuffer& parameters, const StateRanks& ranks) {
  const at::Tensor trained = at::full({1}, parameters.trained_size() > 0 ? 1 : 0, at::kByte);
  if (ranks.model != nullptr) MR_TRY(ranks.model->AllReduce(trained, Reduction::kMax));
  if (trained.item<bool>()) return {};
  return Fail(
      Code::kInvalidArgument,
      "all parameters of the model are frozen: nothing is left to train; name fewer in train.freeze, or add lora");
}

}  // namespace

Status CheckGlobs(std::string_view key, const ParameterBuffer& parameters, const std::vector<std::string>& globs,
                  const StateRanks& ranks) {
  at::Tensor matches = at::zeros({static_cast<std::int64_t>(globs.size())}, at::kByte);
  for (std::size_t i = 0; i < globs.size(); ++i) {
    matches[static_cast<std::int64_t>(i)] =
        std::ranges::any_of(parameters.parameters(),
                            [&](const NamedParameter& parameter) { return GlobMatches(globs[i], parameter.name); });
  }
  if (ranks.model != nullptr && !globs.empty()) MR_TRY(ranks.model->AllReduce(matches, Reduction::kMax));
  for (std::size_t i = 0; i < globs.size(); ++i) {
    if (matches[static_cast<std::int64_t>(i)].item<bool>()) continue;
    return Fail(Code::kInvalidArgument, "{}: no parameter of the model matches \"{}\"; expected names such as \"{}\"",
                key, globs[i], parameters.parameters().front().name);
  }
  return {};
}

Result<std::unique_ptr<Optimizer>> MakeOptimizer(ParameterBuffer& parameters, const OptimizerOptions& options,
                                                 const StateRanks& ranks) {
  MR_TRY(CheckGlobs("no_decay", parameters, options.rules.no_decay, ranks));
  MR_TRY(CheckTrained(parameters, ranks));
  return std::visit([&](const auto& method) { return Make(parameters, method, options, ranks); }, options.method);
}

}  // namespace millrace::engine
