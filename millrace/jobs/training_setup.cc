#include "millrace/jobs/training_setup.h"

namespace millrace::jobs {

plan::TrainingSetup TrainingSetupOf(const Spec& spec) {
  const TrainSpec& train = spec.train;
  const bool has_momentum = train.optimizer.sgd.momentum > 0;
  const bool has_local = !spec.checkpoint.local_path.empty();
  return {.ranks = spec.ranks(),
          .ranks_per_machine = spec.run.processes_per_node,
          .global_batch = train.global_batch,
          .micro_batch = train.micro_batch,
          .sequence_length = spec.data.dataset.sequence_length,
          .bf16 = train.precision == "bf16" || train.precision == "fp16" || train.precision == "fp8",
          .moments = train.optimizer.name != "sgd" ? 2
                     : has_momentum                ? 1
                                                   : 0,
          .moment_bytes = train.optimizer.moments == "bf16" ? 2 : 4,
          .rounds_weights = train.optimizer.stochastic_rounding,
          .offloads_state = train.optimizer.offload,
          .snapshots = spec.checkpoint.url.empty()                 ? 0
                       : has_local && spec.checkpoint.local_beside ? 2
                                                                   : 1,
          .compares_pairs = spec.data.dataset.objective == data::Objective::kDpo};
}

int WantedGpus(const Spec& spec) {
  return spec.run.command.empty() && spec.train.device == "cuda" ? spec.run.processes_per_node : 0;
}

}  // namespace millrace::jobs
