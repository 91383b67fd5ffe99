#include "millrace/engine/optim/adamw.h"

#include <cmath>

#include "millrace/engine/ops/cuda/tensors/optimizer.h"
#include "millrace/engine/ops/dispatch.h"

namespace millrace::engine {

Adamw::Adamw(ParameterBuffer& parameters, AdamwOptions options, ParameterRules rules, const StateStorage& storage)
    : Optimizer(parameters, options.weight_decay, std::move(rules), storage),
      options_(options),
      runs_(UniformRuns()),
      blocks_(BlocksOf(runs_)) {
  AddState("exp_avg");
  AddState("exp_avg_sq");
}

void Adamw::Update(double lr, double scale) {
  if (HasFused()) return UpdateFused(lr, scale);
  if (HasCuda()) return UpdateOnGpu(lr, scale);
  for (const UniformRun& run : runs_) UpdateReference(run, lr * run.lr_ratio, scale);
}

/// Returns the constants that all runs share.
cpu::AdamwStep Adamw::StepOf(double scale) const {
  const auto t = static_cast<double>(steps());
  return {.lr = 0,  // of each run
          .beta1 = static_cast<float>(options_.beta1),
          .beta2 = static_cast<float>(options_.beta2),
          .eps = static_cast<float>(options_.eps),
          .weight_decay = 0,  // of each run
          .correction1 = static_cast<float>(1 - std::pow(options_.beta1, t)),
          .correction2 = static_cast<float>(1 - std::pow(options_.beta2, t)),
          .gradient_scale = static_cast<float>(scale)};
}

void Adamw::UpdateOnGpu([[maybe_unused]] double lr, [[maybe_unused]] double scale) {
  if constexpr (ops::kBuiltWithCuda) {
    if (runs_.empty()) return;
    std::vector<cuda::OptimizerRun> runs;
    for (const UniformRun& run : runs_) runs.push_back(GpuRun(run, lr * run.lr_ratio));
    ops::cuda::Adamw({std::move(runs), bf16_moments()}, StepOf(scale), runs_.front().values);
  }
}

void Adamw::UpdateFused(double lr, double scale) {
  if (runs_.empty()) return;
  const cpu::AdamwStep step = StepOf(scale);
  ops::DispatchType(runs_.front().values, [&]<class T>(T) {
    blocks_.ForEach([&](std::size_t block) {
      const auto& [number, from, count] = blocks_.all()[block];
      const UniformRun& run = runs_[number];
      cpu::AdamwStep of_run = step;
      of_run.lr = static_cast<float>(lr * run.lr_ratio);
      of_run.weight_decay = static_cast<float>(run.decay);
      ForEachPart(run, from, count, [&](const Part& part) {
        cpu::Adamw(of_run, ops::Data<T>(run.values) + part.from, part.master, part.gradients, part.moments[0],
                   part.moments[1], part.count);
      });
    });
  });
}

void Adamw::UpdateReference(const UniformRun& run, double lr, double scale) {
  const auto t = static_cast<double>(steps());
  ForEachPart(run, 0, run.size(), [&](const Part& part) {
    const at::Tensor weight = part.Master(), moment1 = part.Moment(0), moment2 = part.Moment(1);
    const at::Tensor scaled = part.Gradients() * scale;
    moment1.mul_(options_.beta1).add_(scaled, 1 - options_.beta1);
    moment2.mul_(options_.beta2).addcmul_(scaled, scaled, 1 - options_.beta2);
    const at::Tensor denominator = (moment2 / (1 - std::pow(options_.beta2, t))).sqrt_().add_(options_.eps);
    if (run.decay > 0) weight.mul_(1 - lr * run.decay);
    weight.addcdiv_(moment1, denominator, -lr / (1 - std::pow(options_.beta1, t)));
  });
  RoundMaster(run);
  run.gradients.zero_();
}

}  // namespace millrace::engine
