#include "millrace/engine/optim/adamw.h"

#include <cmath>

#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/optim/blocks.h"

namespace millrace::engine {

Adamw::Adamw(ParameterBuffer& parameters, AdamwOptions options, std::vector<std::string> no_decay)
    : Optimizer(parameters),
      options_(options),
      runs_(RunsOf({.rate = options.weight_decay, .no_decay = std::move(no_decay)})),
      moment1_(AddState("exp_avg")),
      moment2_(AddState("exp_avg_sq")) {}

void Adamw::Update(double lr, double scale) {
  for (const DecayRun& run : runs_) {
    if (HasFused()) {
      UpdateFused(run, lr, scale);
    } else {
      UpdateReference(run, lr, scale);
    }
  }
}

void Adamw::UpdateFused(const DecayRun& run, double lr, double scale) {
  const auto t = static_cast<double>(steps());
  const cpu::AdamwStep step{.lr = static_cast<float>(lr),
                            .beta1 = static_cast<float>(options_.beta1),
                            .beta2 = static_cast<float>(options_.beta2),
                            .eps = static_cast<float>(options_.eps),
                            .weight_decay = static_cast<float>(run.decay),
                            .correction1 = static_cast<float>(1 - std::pow(options_.beta1, t)),
                            .correction2 = static_cast<float>(1 - std::pow(options_.beta2, t)),
                            .gradient_scale = static_cast<float>(scale)};
  float *gradients = run.gradients.data_ptr<float>(), *master = static_cast<float*>(run.master.data_ptr());
  float *moment1 = moment1_.data_ptr<float>() + run.begin, *moment2 = moment2_.data_ptr<float>() + run.begin;
  ops::DispatchType(run.values, [&]<class T>(T) {
    T* weights = ops::Data<T>(run.values);
    ForBlocks(run.size(), [&](std::int64_t from, std::int64_t count) {
      cpu::Adamw(step, weights + from, master + from, gradients + from, moment1 + from, moment2 + from, count);
    });
  });
}

void Adamw::UpdateReference(const DecayRun& run, double lr, double scale) {
  const auto t = static_cast<double>(steps());
  const at::Tensor& weight = run.master;
  const at::Tensor moment1 = moment1_.narrow(0, run.begin, run.size());
  const at::Tensor moment2 = moment2_.narrow(0, run.begin, run.size());
  const at::Tensor scaled = run.gradients * scale;
  moment1.mul_(options_.beta1).add_(scaled, 1 - options_.beta1);
  moment2.mul_(options_.beta2).addcmul_(scaled, scaled, 1 - options_.beta2);
  const at::Tensor denominator = (moment2 / (1 - std::pow(options_.beta2, t))).sqrt_().add_(options_.eps);
  if (run.decay > 0) weight.mul_(1 - lr * run.decay);
  weight.addcdiv_(moment1, denominator, -lr / (1 - std::pow(options_.beta1, t)));
  RoundMaster(run);
  run.gradients.zero_();
}

}  // namespace millrace::engine
