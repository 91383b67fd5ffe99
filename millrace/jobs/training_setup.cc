#include "millrace/jobs/training_setup.h"

#include <variant>

namespace millrace::jobs {

plan::TrainingSetup TrainingSetupOf(const Spec& spec) {
  const TrainSpec& train = spec.train;
  const auto* const sgd = std::get_if<engine::SgdOptions>(&train.optimizer.method);
  return {.ranks = spec.ranks(),
          .ranks_per_machine = spec.run.processes_per_node,
          .global_batch = train.global_batch,
          .micro_batch = train.micro_batch,
          .sequence_length = spec.data.dataset.sequence_length,
          .bf16 = train.precision == "bf16" || train.precision == "fp16" || train.precision == "fp8",
          .moments = sgd == nullptr      ? 2
                     : sgd->momentum > 0 ? 1
                                         : 0,
          .moment_bytes = train.optimizer.storage.bf16_moments ? 2 : 4,
          .rounds_weights = train.optimizer.storage.rounds_weights,
          .offloads_state = train.optimizer.storage.on_host,
          .snapshots = spec.checkpoint.url.empty()                             ? 0
                       : spec.checkpoint.local && spec.checkpoint.local_beside ? 2
                                                                               : 1,
          .compares_pairs = spec.data.dataset.objective == data::Objective::kDpo};
}

int WantedGpus(const Spec& spec) {
  return spec.run.command.empty() && spec.train.device == "cuda" ? spec.run.processes_per_node : 0;
}

}  // namespace millrace::jobs
