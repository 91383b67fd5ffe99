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
  const at::Tensor values = parameters().values();
  float *gradients = parameters().gradients().data_ptr<float>(), *weights32 = master().data_ptr<float>();
  float *moment1 = moment1_.data_ptr<float>(), *moment2 = moment2_.data_ptr<float>();
  ops::DispatchType(values, [&]<class T>(T) {
    T* weights = ops::Data<T>(values);
    ForBlocks(run.begin, run.end, [&](std::int64_t, std::int64_t from, std::int64_t count) {
      cpu::Adamw(step, weights + from, weights32 + from, gradients + from, moment1 + from, moment2 + from, count);
    });
  });
}

void Adamw::UpdateReference(const DecayRun& run, double lr, double scale) {
  const auto part = [&](const at::Tensor& all) { return all.narrow(0, run.begin, run.end - run.begin); };
  const auto t = static_cast<double>(steps());
  at::Tensor gradient = part(parameters().gradients()), weight = part(master());
  at::Tensor moment1 = part(moment1_), moment2 = part(moment2_);
  const at::Tensor scaled = gradient * scale;
  moment1.mul_(options_.beta1).add_(scaled, 1 - options_.beta1);
  moment2.mul_(options_.beta2).addcmul_(scaled, scaled, 1 - options_.beta2);
  const at::Tensor denominator = (moment2 / (1 - std::pow(options_.beta2, t))).sqrt_().add_(options_.eps);
  if (run.decay > 0) weight.mul_(1 - lr * run.decay);
  weight.addcdiv_(moment1, denominator, -lr / (1 - std::pow(options_.beta1, t)));
  RoundMaster(run.begin, run.end);
  gradient.zero_();
}

}  // namespace millrace::engine
