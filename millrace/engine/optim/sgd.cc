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
  float *gradients = run.gradients.data_ptr<float>(), *master = static_cast<float*>(run.master.data_ptr());
  float* momentum = momentum_.defined() ? momentum_.data_ptr<float>() + run.begin : nullptr;
  ops::DispatchType(run.values, [&]<class T>(T) {
    T* weights = ops::Data<T>(run.values);
    ForBlocks(run.size(), [&](std::int64_t from, std::int64_t count) {
      cpu::Sgd(step, weights + from, master + from, gradients + from, momentum == nullptr ? nullptr : momentum + from,
               count);
    });
  });
}

void Sgd::UpdateReference(const DecayRun& run, double lr, double scale) {
  at::Tensor direction = run.gradients * scale + run.master * run.decay;
  if (momentum_.defined()) {
    const at::Tensor momentum = momentum_.narrow(0, run.begin, run.size());
    momentum.mul_(options_.momentum).add_(direction);
    direction = options_.nesterov ? direction + momentum * options_.momentum : momentum;
  }
  run.master.sub_(direction, lr);
  RoundMaster(run);
  run.gradients.zero_();
}

}  // namespace millrace::engine
