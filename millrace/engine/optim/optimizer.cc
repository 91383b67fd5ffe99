#include "millrace/engine/optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/glob.h"
#include "millrace/base/hash/name_hash.h"
#include "millrace/base/hash/random.h"
#include "millrace/engine/config/lora_options.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/optim/blocks.h"

namespace millrace::engine {
namespace {

/// Elements that are widened at a time: their weights and two moments stay in the first-level cache.
constexpr std::int64_t kPartElements = 2048;

/// Keeps the random bits of rounding apart from others that come from the same seed and name.
constexpr std::string_view kRoundingSite = "rounding/";

cpu::ElementNumbers NumbersOf(const NamedParameter& parameter) {
  const TensorSlice& slice = parameter.slice;
  if (slice.whole()) return {};
  std::int64_t inner = 1;
  for (std::size_t dim = slice.dim + 1; dim < parameter.whole_shape.size(); ++dim) inner *= parameter.whole_shape[dim];
  return {
      .run = slice.extent * inner, .stride = parameter.whole_shape[slice.dim] * inner, .offset = slice.begin * inner};
}

}  // namespace

bool ParameterRules::Decays(const NamedParameter& parameter) const {
  return parameter.tensor.dim() >= 2 &&
         std::ranges::none_of(no_decay, [&](const std::string& glob) { return GlobMatches(glob, parameter.name); });
}

double ParameterRules::LrRatioOf(const NamedParameter& parameter) const {
  return parameter.tensor.dim() < 2 || parameter.name.ends_with(kLoraUp) ? loraplus_lr_ratio : 1;
}

Optimizer::Optimizer(ParameterBuffer& parameters, double weight_decay, ParameterRules rules,
                     const StateStorage& storage)
    : parameters_(parameters), weight_decay_(weight_decay), rules_(std::move(rules)), storage_(storage) {
  TORCH_CHECK(parameters.has_gradients(), "an optimizer needs a model with gradients");
  TORCH_CHECK(!storage.rounds_weights || parameters.dtype() == at::kBFloat16,
              "only bfloat16 weights are rounded stochastically");
  TORCH_CHECK(!storage.on_host || parameters.device().is_cpu() || HasCuda(),
              "this program has no kernels for a state on the host");
  if (parameters.dtype() == at::kFloat || storage.rounds_weights) return;
  master_ = MakeState(at::kFloat);
  TakeWeights();
}

at::Tensor Optimizer::MakeState(at::ScalarType type) const {
  const std::int64_t size = parameters_.owned_trained_size();
  if constexpr (ops::kBuiltWithCuda) {
    if (storage_.on_host && HasCuda()) return ops::cuda::HostZeros(size, type);
  }
  return at::zeros({size}, at::TensorOptions().dtype(type).device(parameters_.device()));
}

void Optimizer::AddState(std::string kind) {
  TORCH_CHECK(state_.size() < kMaxMoments);
  state_.push_back({std::move(kind), MakeState(storage_.bf16_moments ? at::kBFloat16 : at::kFloat)});
}

Optimizer::Range Optimizer::RangeOf(const OwnedPiece& piece) const {
  const NamedParameter& parameter = parameters_.parameters()[piece.parameter];
  return {.span = piece.span,
          .begin = piece.begin,
          .end = piece.begin + piece.elements(),
          .decay = rules_.Decays(parameter) ? weight_decay_ : 0,
          .lr_ratio = rules_.LrRatioOf(parameter),
          .rounding_key = HashName(storage_.seed, std::string(kRoundingSite) + parameter.name),
          .first = piece.first,
          .numbers = NumbersOf(parameter)};
}

Optimizer::UniformRun Optimizer::MakeRun(const Range& range) const {
  const OwnedSpan& owned = parameters_.owned_spans()[range.span];
  const std::int64_t from = range.begin - owned.begin, count = range.end - range.begin;
  const at::Tensor values = owned.values.narrow(0, from, count);
  return {.begin = range.begin,
          .values = values,
          .master = master_.defined()         ? master_.narrow(0, range.begin, count)
                    : storage_.rounds_weights ? at::Tensor()
                                              : values,
          .gradients = owned.gradients.narrow(0, from, count),
          .decay = range.decay,
          .lr_ratio = range.lr_ratio,
          .rounding_key = range.rounding_key,
          .first = range.first,
          .numbers = range.numbers};
}

std::vector<Optimizer::UniformRun> Optimizer::UniformRuns() const {
  std::vector<Range> ranges;
  for (const OwnedPiece& piece : parameters_.trained_pieces()) {
    const Range next = RangeOf(piece);
    Range* last = ranges.empty() ? nullptr : &ranges.back();
    const bool joins = last != nullptr && !Rounds() && last->span == next.span && last->decay == next.decay &&
                       last->lr_ratio == next.lr_ratio;
    if (joins) {
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

std::uint64_t Optimizer::StepKey(const UniformRun& run) const {
  return Mix64(run.rounding_key + static_cast<std::uint64_t>(steps_));
}

void Optimizer::ForEachPart(const UniformRun& run, std::int64_t from, std::int64_t count,
                            const std::function<void(const Part&)>& update) const {
  const bool rounds_weights = storage_.rounds_weights, rounds_moments = storage_.bf16_moments && !state_.empty();
  const std::int64_t most = rounds_weights || rounds_moments ? kPartElements : count;
  float wide_weights[kPartElements], wide_moments[kMaxMoments][kPartElements];
  cpu::RoundedElements elements{.key = StepKey(run), .first = 0, .numbers = run.numbers};
  for (std::int64_t done = 0; done < count; done += most) {
    Part part{.from = from + done, .count = std::min(most, count - done)};
    part.gradients = run.gradients.data_ptr<float>() + part.from;
    elements.first = run.first + part.from;
    cpu::Bf16* const weights = rounds_weights ? ops::Data<cpu::Bf16>(run.values) + part.from : nullptr;
    if (rounds_weights) cpu::Widen(weights, wide_weights, part.count);
    part.master = rounds_weights ? wide_weights : run.master.data_ptr<float>() + part.from;
    std::array<cpu::Bf16*, kMaxMoments> moments = {};
    for (std::size_t i = 0; i < state_.size(); ++i) {
      const std::int64_t at = run.begin + part.from;
      if (rounds_moments) {
        moments[i] = ops::Data<cpu::Bf16>(state_[i].values) + at;
        cpu::Widen(moments[i], wide_moments[i], part.count);
      }
      part.moments[i] = rounds_moments ? wide_moments[i] : state_[i].values.data_ptr<float>() + at;
    }
    update(part);
    if (rounds_weights) {
      cpu::RoundStochastically(elements, cpu::RoundedNumber::kWeight, wide_weights, weights, part.count);
    }
    for (std::size_t i = 0; rounds_moments && i < state_.size(); ++i) {
      const auto number = i == 0 ? cpu::RoundedNumber::kMoment1 : cpu::RoundedNumber::kMoment2;
      cpu::RoundStochastically(elements, number, wide_moments[i], moments[i], part.count);
    }
  }
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

bool Optimizer::HasCuda() const { return ops::kBuiltWithCuda && parameters_.device().is_cuda(); }

cuda::OptimizerRun Optimizer::GpuRun(const UniformRun& run, double lr) const {
  const auto moment = [&](std::size_t i) -> void* {
    return i < state_.size() ? state_[i].values.narrow(0, run.begin, run.size()).data_ptr() : nullptr;
  };
  return {.weights = run.values.data_ptr(),
          .master = run.master.defined() ? run.master.data_ptr<float>() : nullptr,
          .gradients = run.gradients.data_ptr<float>(),
          .moment1 = moment(0),
          .moment2 = moment(1),
          .count = run.size(),
          .lr = static_cast<float>(lr),
          .decay = static_cast<float>(run.decay),
          .rounded = {.key = StepKey(run), .first = run.first, .numbers = run.numbers}};
}

void Optimizer::RoundMaster(const UniformRun& run) {
  if (run.master.defined() && !run.master.is_same(run.values)) run.values.copy_(run.master);
}

double ClipScale(double norm, double limit) { return limit > 0 && norm > limit ? limit / norm : 1; }

}  // namespace millrace::engine
