// The options that decide the steps of a run. Plain data, without libtorch: the keys of the job file's section `train`
// are declared on these members (jobs/spec/spec_fields.h), and the training loop reads them as they are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/engine/options/loss_options.h"
#include "millrace/engine/options/optimizer_options.h"
#include "millrace/engine/options/schedule.h"
#include "millrace/train/options/compile.h"
#include "millrace/train/options/profile_options.h"
#include "millrace/train/options/spike_options.h"

namespace millrace::train {

struct TrainingOptions {
  int global_batch = 8, micro_batch = 1;  ///< in sequences
  std::optional<std::uint64_t> steps;     ///< one of these two
  std::optional<double> epochs;
  std::optional<std::uint64_t> steps_this_run;  ///< the steps after which to stop; the schedule keeps its length
  engine::OptimizerOptions optimizer;
  double clip_norm = 1;             ///< 0: none
  std::vector<std::string> freeze;  ///< globs over names of parameters that are not trained
  engine::Schedule schedule;        ///< its total_steps is computed
  double warmup_proportion = 0;     ///< of all steps; if it is not 0, schedule.warmup_steps is computed
  engine::ops::LossOptions loss;
  engine::DpoOptions dpo;    ///< of Objective::kDpo
  double neftune_alpha = 0;  ///< of the noise of embeddings in training; 0: none
  SpikeOptions spikes;
  Compile compile = Compile::kAuto;
  std::string compile_cache;              ///< of kOn: the folder of compiled steps; empty: the user's cache
  std::optional<ProfileOptions> profile;  ///< nothing: no step is traced
  std::uint64_t seed = 42;
  bool operator==(const TrainingOptions&) const = default;
};

}  // namespace millrace::train
