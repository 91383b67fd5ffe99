#include "millrace/engine/optim/make_optimizer.h"

#include <algorithm>

#include "millrace/base/glob.h"

namespace millrace::engine {
namespace {

std::unique_ptr<Optimizer> Make(ParameterBuffer& parameters, const AdamwOptions& method,
                                const std::vector<std::string>& no_decay) {
  return std::make_unique<Adamw>(parameters, method, no_decay);
}
std::unique_ptr<Optimizer> Make(ParameterBuffer& parameters, const LambOptions& method,
                                const std::vector<std::string>& no_decay) {
  return std::make_unique<Lamb>(parameters, method, no_decay);
}
std::unique_ptr<Optimizer> Make(ParameterBuffer& parameters, const SgdOptions& method,
                                const std::vector<std::string>& no_decay) {
  return std::make_unique<Sgd>(parameters, method, no_decay);
}

}  // namespace

Result<std::unique_ptr<Optimizer>> MakeOptimizer(ParameterBuffer& parameters, const OptimizerOptions& options) {
  for (const std::string& glob : options.no_decay) {
    const auto matches = [&](const NamedParameter& parameter) { return GlobMatches(glob, parameter.name); };
    if (std::ranges::none_of(parameters.parameters(), matches)) {
      return Fail(Code::kInvalidArgument, "no_decay: no parameter of the model matches \"{}\"; the first is \"{}\"",
                  glob, parameters.parameters().front().name);
    }
  }
  return std::visit([&](const auto& method) { return Make(parameters, method, options.no_decay); }, options.method);
}

}  // namespace millrace::engine
