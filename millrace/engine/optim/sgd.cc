#include "millrace/engine/optim/sgd.h"

#include "millrace/engine/ops/cuda/tensors/optimizer.h"
#include "millrace/engine/ops/dispatch.h"

namespace millrace::engine {

Sgd::Sgd(ParameterBuffer& parameters, SgdOptions options, ParameterRules rules)
    : Optimizer(parameters, options.weight_decay, std::move(rules)),
      options_(options),
      runs_(UniformRuns()),
      blocks_(BlocksOf(runs_)) {
  if (options_.momentum > 0) momentum_ = AddState("momentum");
}

void Sgd::Update(double lr, double scale) {
  if (HasFused()) return UpdateFused(lr, scale);
  if (HasCuda()) return UpdateOnGpu(lr, scale);
  for (const UniformRun& run : runs_) UpdateReference(run, lr * run.lr_ratio, scale);
}

void Sgd::UpdateOnGpu([[maybe_unused]] double lr, [[maybe_unused]] double scale) {
  if constexpr (ops::kBuiltWithCuda) {
    if (runs_.empty()) return;
    ops::cuda::OptimizerRuns runs;
    for (const UniformRun& run : runs_) {
      runs.push_back(GpuRun(run, lr * run.lr_ratio));
      if (momentum_.defined()) runs.back().moment1 = momentum_.data_ptr<float>() + run.begin;
    }
    ops::cuda::Sgd(std::move(runs),
                   {.lr = 0,  // of each run
                    .momentum = static_cast<float>(options_.momentum),
                    .weight_decay = 0,  // of each run
                    .gradient_scale = static_cast<float>(scale),
                    .nesterov = options_.nesterov},
                   runs_.front().values);
  }
}

void Sgd::UpdateFused(double lr, double scale) {
  if (runs_.empty()) return;
  ops::DispatchType(runs_.front().values, [&]<class T>(T) {
    blocks_.ForEach([&](std::size_t block) {
      const auto& [number, from, count] = blocks_.all()[block];
      const UniformRun& run = runs_[number];
      const cpu::SgdStep step{.lr = static_cast<float>(lr * run.lr_ratio),
                              .momentum = static_cast<float>(options_.momentum),
                              .weight_decay = static_cast<float>(run.decay),
                              .gradient_scale = static_cast<float>(scale),
                              .nesterov = options_.nesterov};
      float* momentum = momentum_.defined() ? momentum_.data_ptr<float>() + run.begin + from : nullptr;
      cpu::Sgd(step, ops::Data<T>(run.values) + from, run.master.data_ptr<float>() + from,
               run.gradients.data_ptr<float>() + from, momentum, count);
    });
  });
}

void Sgd::UpdateReference(const UniformRun& run, double lr, double scale) {
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
