#include "millrace/engine/optim/sgd.h"

#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/optim/blocks.h"

namespace millrace::engine {

Sgd::Sgd(ParameterBuffer& parameters, SgdOptions options, std::vector<std::string> no_decay)
    : Optimizer(parameters),
      options_(options),
      runs_(RunsOf({.rate = options.weight_decay, .no_decay = std::move(no_decay)})) {
  if (options_.momentum > 0) momentum_ = AddState("momentum");
}

void Sgd::Update(double lr, double scale) {
  for (const DecayRun& run : runs_) {
    if (HasFused()) {
      UpdateFused(run, lr, scale);
    } else {
      UpdateReference(run, lr, scale);
    }
  }
}

void Sgd::UpdateFused(const DecayRun& run, double lr, double scale) {
  const cpu::SgdStep step{.lr = static_cast<float>(lr),
                          .momentum = static_cast<float>(options_.momentum),
                          .weight_decay = static_cast<float>(run.decay),
                          .gradient_scale = static_cast<float>(scale),
                          .nesterov = options_.nesterov};
  const at::Tensor values = parameters().values();
  float *gradients = parameters().gradients().data_ptr<float>(), *weights32 = master().data_ptr<float>();
  float* momentum = ops::Data<float>(momentum_);
  ops::DispatchType(values, [&]<class T>(T) {
    T* weights = ops::Data<T>(values);
    ForBlocks(run.begin, run.end, [&](std::int64_t, std::int64_t from, std::int64_t count) {
      cpu::Sgd(step, weights + from, weights32 + from, gradients + from,
               momentum == nullptr ? nullptr : momentum + from, count);
    });
  });
}

void Sgd::UpdateReference(const DecayRun& run, double lr, double scale) {
  const auto part = [&](const at::Tensor& all) { return all.narrow(0, run.begin, run.end - run.begin); };
  at::Tensor gradient = part(parameters().gradients()), weight = part(master());
  at::Tensor direction = gradient * scale + weight * run.decay;
  if (momentum_.defined()) {
    at::Tensor momentum = part(momentum_);
    momentum.mul_(options_.momentum).add_(direction);
    direction = options_.nesterov ? direction + momentum * options_.momentum : momentum;
  }
  weight.sub_(direction, lr);
  RoundMaster(run.begin, run.end);
  gradient.zero_();
}

}  // namespace millrace::engine
