#include "millrace/engine/optim/adamw.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "millrace/engine/ops/dispatch.h"

namespace millrace::engine {
namespace {

/// Elements that a thread takes at a time. GradientNorm() sums blocks of this size, so a change changes results.
constexpr std::int64_t kBlock = 65'536;

template <class Work>
void ForBlocks(std::int64_t begin, std::int64_t end, Work&& work) {
  const std::int64_t blocks = (end - begin + kBlock - 1) / kBlock;
  at::parallel_for(0, blocks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t block = first; block < last; ++block) {
      const std::int64_t from = begin + block * kBlock;
      work(block, from, std::min(end, from + kBlock) - from);
    }
  });
}

}  // namespace

Adamw::Adamw(ParameterBuffer& parameters, AdamwOptions options) : parameters_(parameters), options_(options) {
  TORCH_CHECK(parameters.gradients().defined(), "AdamW needs a model with gradients");
  moment1_ = at::zeros_like(parameters.gradients());
  moment2_ = at::zeros_like(parameters.gradients());
  master_ = parameters.values().to(at::kFloat);  // float32 values stay the same tensor
  for (const NamedParameter& parameter : parameters.parameters()) {
    const bool decay = parameter.tensor.dim() >= 2;
    const std::int64_t end = parameter.begin + parameter.elements();
    if (!runs_.empty() && runs_.back().decay == decay) {
      runs_.back().end = end;
    } else {
      runs_.push_back({parameter.begin, end, decay});
    }
  }
}

double Adamw::GradientNorm(double scale) const {
  const at::Tensor gradients = parameters_.gradients();
  if (!gradients.device().is_cpu()) return gradients.to(at::kDouble).norm().item<double>() * scale;
  std::vector<double> partial((gradients.numel() + kBlock - 1) / kBlock);
  const float* data = gradients.data_ptr<float>();
  ForBlocks(0, gradients.numel(), [&](std::int64_t block, std::int64_t from, std::int64_t count) {
    partial[block] = cpu::SumOfSquares(data + from, count);
  });
  return std::sqrt(std::accumulate(partial.begin(), partial.end(), 0.0)) * scale;
}

void Adamw::Step(double lr, double scale) {
  const at::NoGradGuard no_grad;
  ++steps_;
  for (const Run& run : runs_) {
    if (ops::HasFused(parameters_.values())) {
      StepFused(run, lr, scale);
    } else {
      StepReference(run, lr, scale);
    }
  }
}

void Adamw::StepFused(const Run& run, double lr, double scale) {
  const auto t = static_cast<double>(steps_);
  const cpu::AdamwStep step{.lr = static_cast<float>(lr),
                            .beta1 = static_cast<float>(options_.beta1),
                            .beta2 = static_cast<float>(options_.beta2),
                            .eps = static_cast<float>(options_.eps),
                            .weight_decay = static_cast<float>(run.decay ? options_.weight_decay : 0),
                            .correction1 = static_cast<float>(1 - std::pow(options_.beta1, t)),
                            .correction2 = static_cast<float>(1 - std::pow(options_.beta2, t)),
                            .gradient_scale = static_cast<float>(scale)};
  const at::Tensor values = parameters_.values();
  float *gradients = parameters_.gradients().data_ptr<float>(), *master = master_.data_ptr<float>();
  float *moment1 = moment1_.data_ptr<float>(), *moment2 = moment2_.data_ptr<float>();
  ops::DispatchType(values, [&]<class T>(T) {
    T* weights = ops::Data<T>(values);
    ForBlocks(run.begin, run.end, [&](std::int64_t, std::int64_t from, std::int64_t count) {
      cpu::Adamw(step, weights + from, master + from, gradients + from, moment1 + from, moment2 + from, count);
    });
  });
}

void Adamw::StepReference(const Run& run, double lr, double scale) {
  const auto part = [&](const at::Tensor& all) { return all.narrow(0, run.begin, run.end - run.begin); };
  const auto t = static_cast<double>(steps_);
  at::Tensor gradient = part(parameters_.gradients()), weight = part(master_);
  at::Tensor moment1 = part(moment1_), moment2 = part(moment2_);
  const at::Tensor scaled = gradient * scale;
  moment1.mul_(options_.beta1).add_(scaled, 1 - options_.beta1);
  moment2.mul_(options_.beta2).addcmul_(scaled, scaled, 1 - options_.beta2);
  const at::Tensor denominator = (moment2 / (1 - std::pow(options_.beta2, t))).sqrt_().add_(options_.eps);
  if (run.decay) weight.mul_(1 - lr * options_.weight_decay);
  weight.addcdiv_(moment1, denominator, -lr / (1 - std::pow(options_.beta1, t)));
  if (!master_.is_same(parameters_.values())) part(parameters_.values()).copy_(weight);
  gradient.zero_();
}

std::vector<NamedState> Adamw::State() {
  std::vector<NamedState> state;
  const auto add = [&](std::string_view kind, const at::Tensor& all) {
    for (const NamedParameter& parameter : parameters_.parameters()) {
      state.push_back({fmt::format("{}/{}", kind, parameter.name),
                       all.narrow(0, parameter.begin, parameter.elements()).view(parameter.tensor.sizes()),
                       &parameter});
    }
  };
  add("exp_avg", moment1_);
  add("exp_avg_sq", moment2_);
  if (parameters_.values().scalar_type() != at::kFloat) add("master", master_);
  return state;
}

void Adamw::TakeWeights() {
  const at::NoGradGuard no_grad;
  if (parameters_.values().scalar_type() != at::kFloat) master_.copy_(parameters_.values());
}

double ClipScale(double norm, double limit) { return limit > 0 && norm > limit ? limit / norm : 1; }

}  // namespace millrace::engine
