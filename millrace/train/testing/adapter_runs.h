// Whole runs that train adapters of a tiny model.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "millrace/train/testing/train_runs.h"

namespace millrace::train {

class AdapterTest : public TrainTest {
 protected:
  /// A model with random weights, in a checkpoint.
  std::string Base(std::string_view name, std::uint64_t seed) {
    Options options = Tiny(name);
    options.seed = seed;
    options.steps = 1;
    options.checkpoint.url = CheckpointUrl(name);
    EXPECT_TRUE(Run(options).outcome);
    return options.checkpoint.url;
  }
  Options Adapting(const std::string& base, std::string_view run) const {
    Options options = Tiny(run);
    options.model_config = {};
    options.model_url = base;
    options.lora = engine::LoraOptions{.rank = 4, .alpha = 16, .dropout = 0.1};
    options.checkpoint.url = CheckpointUrl(run);
    return options;
  }
};

}  // namespace millrace::train
