#include "millrace/engine/optim/make_optimizer.h"

#include <algorithm>

#include "millrace/base/glob.h"

namespace millrace::engine {
namespace {

std::unique_ptr<Optimizer> Make(ParameterBuffer& parameters, const AdamwOptions& method,
                                const std::vector<std::string>& no_decay, const StateRanks&) {
  return std::make_unique<Adamw>(parameters, method, no_decay);
}
std::unique_ptr<Optimizer> Make(ParameterBuffer& parameters, const LambOptions& method,
                                const std::vector<std::string>& no_decay, const StateRanks& ranks) {
  return std::make_unique<Lamb>(parameters, method, no_decay, ranks);
}
std::unique_ptr<Optimizer> Make(ParameterBuffer& parameters, const SgdOptions& method,
                                const std::vector<std::string>& no_decay, const StateRanks&) {
  return std::make_unique<Sgd>(parameters, method, no_decay);
}

/// Returns for each glob whether it matches a parameter of any rank.
Result<at::Tensor> Matches(const ParameterBuffer& parameters, const std::vector<std::string>& globs,
                           const StateRanks& ranks) {
  at::Tensor matches = at::zeros({static_cast<std::int64_t>(globs.size())}, at::kByte);
  for (std::size_t i = 0; i < globs.size(); ++i) {
    matches[static_cast<std::int64_t>(i)] =
        std::ranges::any_of(parameters.parameters(),
                            [&](const NamedParameter& parameter) { return GlobMatches(globs[i], parameter.name); });
  }
  if (ranks.model != nullptr && !globs.empty()) MR_TRY(ranks.model->AllReduce(matches, Reduction::kMax));
  return matches;
}

}  // namespace

Result<std::unique_ptr<Optimizer>> MakeOptimizer(ParameterBuffer& parameters, const OptimizerOptions& options,
                                                 const StateRanks& ranks) {
  const at::Tensor matches = MR_TRY(Matches(parameters, options.no_decay, ranks));
  for (std::size_t i = 0; i < options.no_decay.size(); ++i) {
    if (matches[static_cast<std::int64_t>(i)].item<bool>()) continue;
    return Fail(Code::kInvalidArgument, "no_decay: no parameter of the model matches \"{}\"; the first is \"{}\"",
                options.no_decay[i], parameters.parameters().front().name);
  }
  return std::visit([&](const auto& method) { return Make(parameters, method, options.no_decay, ranks); },
                    options.method);
}

}  // namespace millrace::engine
