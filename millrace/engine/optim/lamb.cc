#include "millrace/engine/optim/lamb.h"

#include <cmath>
#include <map>

#include "millrace/engine/errors.h"
#include "millrace/engine/ops/cuda/tensors/optimizer.h"
#include "millrace/engine/ops/dispatch.h"

namespace millrace::engine {

Lamb::Lamb(ParameterBuffer& parameters, LambOptions options, ParameterRules rules, const StateRanks& ranks,
           const StateStorage& storage)
    : Optimizer(parameters, options.weight_decay, std::move(rules), storage), options_(options), ranks_(ranks) {
  AddState("exp_avg");
  AddState("exp_avg_sq");
  // Whole tensors are numbered in the order of their first slices. All ranks of a stage count in the same order. A rank
  // may hold several slices of a tensor: of queries, of keys and of values.
  std::map<std::string_view, std::size_t> tensors;
  for (const NamedParameter& parameter : parameters.parameters()) {
    const auto [tensor, is_new] = tensors.try_emplace(parameter.name, tensors.size());
    if (is_new && parameter.shared_by_stages) tied_.push_back(tensor->second);
  }
  squares_ = at::zeros({static_cast<std::int64_t>(tensors.size()), 2}, at::kDouble);
  for (const OwnedPiece& piece : parameters.trained_pieces()) {
    const NamedParameter& parameter = parameters.parameters()[piece.parameter];
    blocks_.Add(piece.elements());
    // One of the tensor ranks that hold the same slice counts it. Both stages of a tied tensor count their copies.
    pieces_.push_back({RunOf(piece), tensors.at(parameter.name), ranks.IsFirstHolder(parameter)});
  }
}

void Lamb::Update(double lr, double scale) {
  squares_.zero_();
  if (HasFused()) {
    ComputeDirections(scale);
  } else if (HasCuda()) {
    ComputeDirectionsOnGpu(scale);
  } else {
    for (const PieceRun& piece : pieces_) ComputeDirectionReference(piece, scale);
  }
  SumOverRanks();
  if (HasFused()) return Apply(lr);
  if (HasCuda()) return ApplyOnGpu(lr);
  for (const PieceRun& piece : pieces_) {
    const UniformRun& run = piece.run;
    ForEachPart(run, 0, run.size(),
                [&](const Part& part) { part.Master().sub_(part.Gradients(), lr * run.lr_ratio * TrustRatio(piece)); });
    RoundMaster(run);
    run.gradients.zero_();
  }
}

cpu::LambStep Lamb::StepOf(double scale) const {
  const auto t = static_cast<double>(steps());
  return {.beta1 = static_cast<float>(options_.beta1),
          .beta2 = static_cast<float>(options_.beta2),
          .eps = static_cast<float>(options_.eps),
          .correction1 = static_cast<float>(1 - std::pow(options_.beta1, t)),
          .correction2 = static_cast<float>(1 - std::pow(options_.beta2, t)),
          .gradient_scale = static_cast<float>(scale)};
}

/// The first pass on a GPU.
void Lamb::ComputeDirectionsOnGpu([[maybe_unused]] double scale) {
  if constexpr (ops::kBuiltWithCuda) {
    if (pieces_.empty()) return;
    std::vector<cuda::OptimizerRun> runs;
    for (const PieceRun& piece : pieces_) runs.push_back(GpuRun(piece.run, /*lr=*/0));  // of the second pass
    const std::vector<cpu::LambSquares> squares =
        ops::cuda::LambDirection({std::move(runs), bf16_moments()}, StepOf(scale), pieces_.front().run.values);
    for (std::size_t i = 0; i < squares.size(); ++i) AddSquares(pieces_[i], squares[i]);
  }
}

/// The second pass on a GPU.
void Lamb::ApplyOnGpu([[maybe_unused]] double lr) {
  if constexpr (ops::kBuiltWithCuda) {
    if (pieces_.empty()) return;
    std::vector<cuda::OptimizerRun> runs;
    for (const PieceRun& piece : pieces_) {
      runs.push_back(GpuRun(piece.run, lr * piece.run.lr_ratio * TrustRatio(piece)));
    }
    ops::cuda::LambApply({std::move(runs), bf16_moments()}, pieces_.front().run.values);
  }
}

/// First pass: the moments, and the updates in place of the gradients.
void Lamb::ComputeDirections(double scale) {
  const cpu::LambStep step = StepOf(scale);
  std::vector<cpu::LambSquares> squares(blocks_.all().size());
  blocks_.ForEach([&](std::size_t i) {
    const auto& [piece, from, count] = blocks_.all()[i];
    const UniformRun& run = pieces_[piece].run;
    ForEachPart(run, from, count, [&](const Part& part) {
      const cpu::LambSquares of_part = cpu::LambDirection(step, static_cast<float>(run.decay), part.master,
                                                          part.gradients, part.moments[0], part.moments[1], part.count);
      squares[i].weight += of_part.weight;
      squares[i].update += of_part.update;
    });
  });
  // Added in the order of blocks, whichever thread made them.
  for (std::size_t i = 0; i < squares.size(); ++i) AddSquares(pieces_[blocks_.all()[i].run], squares[i]);
}

void Lamb::ComputeDirectionReference(const PieceRun& piece, double scale) {
  const UniformRun& run = piece.run;
  const auto t = static_cast<double>(steps());
  const auto squares = [](const at::Tensor& x) { return x.to(at::kDouble).square().sum().item<double>(); };
  ForEachPart(run, 0, run.size(), [&](const Part& part) {
    const at::Tensor weight = part.Master(), gradients = part.Gradients();
    const at::Tensor moment1 = part.Moment(0), moment2 = part.Moment(1);
    const at::Tensor scaled = gradients * scale;
    moment1.mul_(options_.beta1).add_(scaled, 1 - options_.beta1);
    moment2.mul_(options_.beta2).addcmul_(scaled, scaled, 1 - options_.beta2);
    const at::Tensor denominator = (moment2 / (1 - std::pow(options_.beta2, t))).sqrt_().add_(options_.eps);
    gradients.copy_(moment1 / (1 - std::pow(options_.beta1, t)) / denominator + weight * run.decay);
    AddSquares(piece, {squares(weight), squares(gradients)});
  });
}

void Lamb::AddSquares(const PieceRun& piece, const cpu::LambSquares& squares) {
  if (!piece.counts) return;
  double* sums = squares_.data_ptr<double>() + 2 * piece.tensor;
  sums[0] += squares.weight;
  sums[1] += squares.update;
}

void Lamb::SumOverRanks() {
  if (ranks_.stage != nullptr) ThrowIfFailed(ranks_.stage->AllReduce(squares_));
  if (ranks_.tied == nullptr || tied_.empty()) return;
  // The two stages may add the same squares in different orders. Their weights must not drift apart.
  for (const std::size_t tensor : tied_) {
    ThrowIfFailed(ranks_.tied->Broadcast(squares_[static_cast<std::int64_t>(tensor)], 0));
  }
}

double Lamb::TrustRatio(const PieceRun& piece) const {
  const double* sums = squares_.data_ptr<double>() + 2 * piece.tensor;
  const double weight_norm = std::sqrt(sums[0]), update_norm = std::sqrt(sums[1]);
  return piece.run.decay > 0 && weight_norm > 0 && update_norm > 0 ? weight_norm / update_norm : 1;
}

/// Second pass: the weights.
void Lamb::Apply(double lr) {
  ops::DispatchType(parameters().owned_spans().front().values, [&]<class T>(T) {
    blocks_.ForEach([&](std::size_t i) {
      const auto& [number, from, count] = blocks_.all()[i];
      const PieceRun& piece = pieces_[number];
      const auto rate = static_cast<float>(lr * piece.run.lr_ratio * TrustRatio(piece));
      ForEachPart(piece.run, from, count, [&](const Part& part) {
        cpu::LambApply(rate, ops::Data<T>(piece.run.values) + part.from, part.master, part.gradients, part.count);
      });
    });
  });
}

}  // namespace millrace::engine
