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
  TORCH_CHECK(parameters.has_gradients(), "an optimizer needs a model with gradients");
  if (parameters.dtype() == at::kFloat) return;
  master_ =
      at::zeros({parameters.owned_trained_size()}, at::TensorOptions().dtype(at::kFloat).device(parameters.device()));
  TakeWeights();
}

at::Tensor Optimizer::AddState(std::string kind) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(parameters_.device());
  state_.push_back({std::move(kind), at::zeros({parameters_.owned_trained_size()}, options)});
  return state_.back().values;
}

Optimizer::DecayRun Optimizer::MakeRun(std::size_t span, std::int64_t begin, std::int64_t end, double decay) const {
  const OwnedSpan& owned = parameters_.owned_spans()[span];
  const at::Tensor values = owned.values.narrow(0, begin - owned.begin, end - begin);
  return {.begin = begin,
          .values = values,
          .master = master_.defined() ? master_.narrow(0, begin, end - begin) : values,
          .gradients = owned.gradients.narrow(0, begin - owned.begin, end - begin),
          .decay = decay};
}

std::vector<Optimizer::DecayRun> Optimizer::RunsOf(const WeightDecay& decay) const {
  struct Range {
    std::size_t span;
    std::int64_t begin, end;
    double decay;
  };
  std::vector<Range> ranges;
  for (const OwnedPiece& piece : parameters_.trained_pieces()) {
    const double rate = decay.RateOf(parameters_.parameters()[piece.parameter]);
    const std::int64_t end = piece.begin + piece.elements();
    if (!ranges.empty() && ranges.back().span == piece.span && ranges.back().decay == rate) {
      ranges.back().end = end;
    } else {
      ranges.push_back({piece.span, piece.begin, end, rate});
    }
  }
  std::vector<DecayRun> runs;
  for (const Range& range : ranges) runs.push_back(MakeRun(range.span, range.begin, range.end, range.decay));
  return runs;
}

Optimizer::DecayRun Optimizer::RunOf(const OwnedPiece& piece, const WeightDecay& decay) const {
  return MakeRun(piece.span, piece.begin, piece.begin + piece.elements(),
                 decay.RateOf(parameters_.parameters()[piece.parameter]));
}

void Optimizer::Step(double lr, double scale) {
  const at::NoGradGuard no_grad;
  ++steps_;
  Update(lr, scale);
}

void Optimizer::Skip() {
  const at::NoGradGuard no_grad;
  for (const OwnedPiece& piece : parameters_.trained_pieces()) piece.gradients.zero_();
}

std::vector<NamedState> Optimizer::State() {
  std::vector<NamedState> state;
  const auto add = [&](std::string_view kind, const at::Tensor& all) {
    for (const OwnedPiece& piece : parameters_.trained_pieces()) {
      state.push_back({fmt::format("{}/{}", kind, parameters_.parameters()[piece.parameter].name),
                       all.narrow(0, piece.begin, piece.elements()), &piece});
    }
  };
  for (const StateKind& kind : state_) add(kind.name, kind.values);
  if (master_.defined()) add("master", master_);
  return state;
}

void Optimizer::TakeWeights() {
  if (!master_.defined()) return;
  const at::NoGradGuard no_grad;
  for (const OwnedSpan& span : parameters_.owned_spans()) {
    master_.narrow(0, span.begin, span.values.numel()).copy_(span.values);
  }
}

bool Optimizer::HasFused() const {
  return !parameters_.owned_spans().empty() && ops::HasFused(parameters_.owned_spans().front().values);
}

void Optimizer::RoundMaster(const DecayRun& run) {
  if (!run.master.is_same(run.values)) run.values.copy_(run.master);
}

double ClipScale(double norm, double limit) { return limit > 0 && norm > limit ? limit / norm : 1; }

}  // namespace millrace::engine
