#include "millrace/engine/optim/optimizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/glob.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/optim/blocks.h"

namespace millrace::engine {

double WeightDecay::RateOf(const NamedParameter& parameter) const {
  const bool excluded =
      std::ranges::any_of(no_decay, [&](const std::string& glob) { return GlobMatches(glob, parameter.name); });
  return parameter.tensor.dim() < 2 || excluded ? 0 : rate;
}

Optimizer::Optimizer(ParameterBuffer& parameters) : parameters_(parameters) {
  TORCH_CHECK(parameters.gradients().defined(), "an optimizer needs a model with gradients");
  master_ = parameters.values().to(at::kFloat);  // float32 values stay the same tensor
}

at::Tensor Optimizer::AddState(std::string kind) {
  state_.push_back({std::move(kind), at::zeros_like(parameters_.gradients())});
  return state_.back().values;
}

std::vector<Optimizer::DecayRun> Optimizer::RunsOf(const WeightDecay& decay) const {
  std::vector<DecayRun> runs;
  for (const NamedParameter& parameter : parameters_.parameters()) {
    const double rate = decay.RateOf(parameter);
    const std::int64_t end = parameter.begin + parameter.elements();
    if (!runs.empty() && runs.back().decay == rate) {
      runs.back().end = end;
    } else {
      runs.push_back({parameter.begin, end, rate});
    }
  }
  return runs;
}

void Optimizer::Step(double lr, double scale) {
  const at::NoGradGuard no_grad;
  ++steps_;
  Update(lr, scale);
}

std::vector<NamedState> Optimizer::State() {
  std::vector<NamedState> state;
  const auto add = [&](std::string_view kind, const at::Tensor& all) {
    for (const NamedParameter& parameter : parameters_.parameters()) {
      state.push_back({fmt::format("{}/{}", kind, parameter.name),
                       all.narrow(0, parameter.begin, parameter.elements()).view(parameter.tensor.sizes()),
                       &parameter});
    }
  };
  for (const StateKind& kind : state_) add(kind.name, kind.values);
  if (parameters_.values().scalar_type() != at::kFloat) add("master", master_);
  return state;
}

void Optimizer::TakeWeights() {
  const at::NoGradGuard no_grad;
  if (parameters_.values().scalar_type() != at::kFloat) master_.copy_(parameters_.values());
}

bool Optimizer::HasFused() const { return ops::HasFused(parameters_.values()); }

void Optimizer::RoundMaster(std::int64_t begin, std::int64_t end) {
  if (master_.is_same(parameters_.values())) return;
  parameters_.values().narrow(0, begin, end - begin).copy_(master_.narrow(0, begin, end - begin));
}

double ClipScale(double norm, double limit) { return limit > 0 && norm > limit ? limit / norm : 1; }

}  // namespace millrace::engine
