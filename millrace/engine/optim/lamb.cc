#include "millrace/engine/optim/lamb.h"

#include <cmath>

#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/optim/blocks.h"

namespace millrace::engine {
namespace {

double TrustRatio(double decay, double weight_norm, double update_norm) {
  return decay > 0 && weight_norm > 0 && update_norm > 0 ? weight_norm / update_norm : 1;
}

}  // namespace

Lamb::Lamb(ParameterBuffer& parameters, LambOptions options, std::vector<std::string> no_decay)
    : Optimizer(parameters), options_(options), moment1_(AddState("exp_avg")), moment2_(AddState("exp_avg_sq")) {
  const WeightDecay decay{.rate = options.weight_decay, .no_decay = std::move(no_decay)};
  for (const NamedParameter& parameter : parameters.parameters()) {
    for (std::int64_t from = 0; from < parameter.elements(); from += kOptimizerBlock) {
      blocks_.push_back(
          {decay_.size(), parameter.begin + from, std::min(kOptimizerBlock, parameter.elements() - from)});
    }
    decay_.push_back(decay.RateOf(parameter));
  }
}

void Lamb::Update(double lr, double scale) {
  if (HasFused()) return UpdateFused(lr, scale);
  for (std::size_t i = 0; i < decay_.size(); ++i) UpdateReference(i, lr, scale);
}

void Lamb::UpdateFused(double lr, double scale) {
  const auto t = static_cast<double>(steps());
  const cpu::LambStep step{.beta1 = static_cast<float>(options_.beta1),
                           .beta2 = static_cast<float>(options_.beta2),
                           .eps = static_cast<float>(options_.eps),
                           .correction1 = static_cast<float>(1 - std::pow(options_.beta1, t)),
                           .correction2 = static_cast<float>(1 - std::pow(options_.beta2, t)),
                           .gradient_scale = static_cast<float>(scale)};
  const at::Tensor values = parameters().values();
  float *gradients = parameters().gradients().data_ptr<float>(), *weights32 = master().data_ptr<float>();
  float *moment1 = moment1_.data_ptr<float>(), *moment2 = moment2_.data_ptr<float>();
  const auto for_blocks = [&](const auto& work) {
    at::parallel_for(0, static_cast<std::int64_t>(blocks_.size()), 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) work(i, blocks_[static_cast<std::size_t>(i)]);
    });
  };
  // First pass: the moments, and the updates in place of the gradients.
  std::vector<cpu::LambSquares> squares(blocks_.size());
  for_blocks([&](std::int64_t i, const Block& block) {
    const std::int64_t from = block.begin;
    squares[static_cast<std::size_t>(i)] =
        cpu::LambDirection(step, static_cast<float>(decay_[block.parameter]), weights32 + from, gradients + from,
                           moment1 + from, moment2 + from, block.count);
  });
  std::vector<cpu::LambSquares> sums(decay_.size());  // added in the order of blocks, whichever thread made them
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    sums[blocks_[i].parameter].weight += squares[i].weight;
    sums[blocks_[i].parameter].update += squares[i].update;
  }
  // Second pass: the weights.
  ops::DispatchType(values, [&]<class T>(T) {
    T* weights = ops::Data<T>(values);
    for_blocks([&](std::int64_t, const Block& block) {
      const cpu::LambSquares& sum = sums[block.parameter];
      const double ratio = TrustRatio(decay_[block.parameter], std::sqrt(sum.weight), std::sqrt(sum.update));
      const std::int64_t from = block.begin;
      cpu::LambApply(static_cast<float>(lr * ratio), weights + from, weights32 + from, gradients + from, block.count);
    });
  });
}

void Lamb::UpdateReference(std::size_t parameter, double lr, double scale) {
  const NamedParameter& named = parameters().parameters()[parameter];
  const auto part = [&](const at::Tensor& all) { return all.narrow(0, named.begin, named.elements()); };
  const auto t = static_cast<double>(steps());
  at::Tensor gradient = part(parameters().gradients()), weight = part(master());
  at::Tensor moment1 = part(moment1_), moment2 = part(moment2_);
  const at::Tensor scaled = gradient * scale;
  moment1.mul_(options_.beta1).add_(scaled, 1 - options_.beta1);
  moment2.mul_(options_.beta2).addcmul_(scaled, scaled, 1 - options_.beta2);
  const at::Tensor denominator = (moment2 / (1 - std::pow(options_.beta2, t))).sqrt_().add_(options_.eps);
  const double decay = decay_[parameter];
  const at::Tensor update = moment1 / (1 - std::pow(options_.beta1, t)) / denominator + weight * decay;
  const auto norm = [](const at::Tensor& x) { return x.to(at::kDouble).norm().item<double>(); };
  weight.sub_(update, lr * TrustRatio(decay, norm(weight), norm(update)));
  RoundMaster(named.begin, named.begin + named.elements());
  gradient.zero_();
}

}  // namespace millrace::engine
