#include "millrace/engine/optim/sgd.h"

#include "millrace/engine/ops/cuda/tensors/optimizer.h"
#include "millrace/engine/ops/dispatch.h"

namespace millrace::engine {

Sgd::Sgd(ParameterBuffer& parameters, SgdOptions options, ParameterRules rules, const StateStorage& storage)
    : Optimizer(parameters, options.weight_decay, std::move(rules), storage),
      options_(options),
      runs_(UniformRuns()),
      blocks_(BlocksOf(runs_)) {
  if (options_.momentum > 0) AddState("momentum");
}

void Sgd::Update(double lr, double scale) {
  if (HasFused()) return UpdateFused(lr, scale);
  if (HasCuda()) return UpdateOnGpu(lr, scale);
  for (const UniformRun& run : runs_) UpdateReference(run, lr * run.lr_ratio, scale);
}

void Sgd::UpdateOnGpu([[maybe_unused]] double lr, [[maybe_unused]] double scale) {
  if constexpr (ops::kBuiltWithCuda) {
    if (runs_.empty()) return;
    std::vector<cuda::OptimizerRun> runs;
    for (const UniformRun& run : runs_) runs.push_back(GpuRun(run, lr * run.lr_ratio));
    ops::cuda::Sgd({std::move(runs), bf16_moments()},
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
      ForEachPart(run, from, count, [&](const Part& part) {
        cpu::Sgd(step, ops::Data<T>(run.values) + part.from, part.master, part.gradients, part.moments[0], part.count);
      });
    });
  });
}

void Sgd::UpdateReference(const UniformRun& run, double lr, double scale) {
  ForEachPart(run, 0, run.size(), [&](const Part& part) {
    at::Tensor direction = part.Gradients() * scale + part.Master() * run.decay;
    if (options_.momentum > 0) {
      const at::Tensor momentum = part.Moment(0);
      momentum.mul_(options_.momentum).add_(direction);
      direction = options_.nesterov ? direction + momentum * options_.momentum : momentum;
    }
    part.Master().sub_(direction, lr);
  });
  RoundMaster(run);
  run.gradients.zero_();
}

}  // namespace millrace::engine
