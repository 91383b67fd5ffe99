#include "millrace/engine/optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/glob.h"
#include "millrace/engine/adapters/lora_options.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/optim/blocks.h"

namespace millrace::engine {

bool ParameterRules::Decays(const NamedParameter& parameter) const {
  return parameter.tensor.dim() >= 2 &&
         std::ranges::none_of(no_decay, [&](const std::string& glob) { return GlobMatches(glob, parameter.name); });
}

double ParameterRules::LrRatioOf(const NamedParameter& parameter) const {
  return parameter.tensor.dim() < 2 || parameter.name.ends_with(kLoraUp) ? loraplus_lr_ratio : 1;
}

Optimizer::Optimizer(ParameterBuffer& parameters, double weight_decay, ParameterRules rules)
    : parameters_(parameters), weight_decay_(weight_decay), rules_(std::move(rules)) {
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

Optimizer::Range Optimizer::RangeOf(const OwnedPiece& piece) const {
  const NamedParameter& parameter = parameters_.parameters()[piece.parameter];
  return {.span = piece.span,
          .begin = piece.begin,
          .end = piece.begin + piece.elements(),
          .decay = rules_.Decays(parameter) ? weight_decay_ : 0,
          .lr_ratio = rules_.LrRatioOf(parameter)};
}

Optimizer::UniformRun Optimizer::MakeRun(const Range& range) const {
  const OwnedSpan& owned = parameters_.owned_spans()[range.span];
  const std::int64_t from = range.begin - owned.begin, count = range.end - range.begin;
  const at::Tensor values = owned.values.narrow(0, from, count);
  return {.begin = range.begin,
          .values = values,
          .master = master_.defined() ? master_.narrow(0, range.begin, count) : values,
          .gradients = owned.gradients.narrow(0, from, count),
          .decay = range.decay,
          .lr_ratio = range.lr_ratio};
}

std::vector<Optimizer::UniformRun> Optimizer::UniformRuns() const {
  std::vector<Range> ranges;
  for (const OwnedPiece& piece : parameters_.trained_pieces()) {
    const Range next = RangeOf(piece);
    Range* last = ranges.empty() ? nullptr : &ranges.back();
    if (last != nullptr && last->span == next.span && last->decay == next.decay && last->lr_ratio == next.lr_ratio) {
      last->end = next.end;
    } else {
      ranges.push_back(next);
    }
  }
  std::vector<UniformRun> runs;
  for (const Range& range : ranges) runs.push_back(MakeRun(range));
  return runs;
}

Optimizer::UniformRun Optimizer::RunOf(const OwnedPiece& piece) const { return MakeRun(RangeOf(piece)); }

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

bool Optimizer::HasCuda() const { return ops::kBuiltWithCuda && parameters_.device().is_cuda(); }

cuda::OptimizerRun Optimizer::GpuRun(const UniformRun& run, double lr) {
  return {.weights = run.values.data_ptr(),
          .master = run.master.data_ptr<float>(),
          .gradients = run.gradients.data_ptr<float>(),
          .count = run.size(),
          .lr = static_cast<float>(lr),
          .decay = static_cast<float>(run.decay)};
}

void Optimizer::RoundMaster(const UniformRun& run) {
  if (!run.master.is_same(run.values)) run.values.copy_(run.master);
}

double ClipScale(double norm, double limit) { return limit > 0 && norm > limit ? limit / norm : 1; }

}  // namespace millrace::engine
