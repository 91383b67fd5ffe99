// The lines of millrace-train as readers of other trainers know them: the form in which the Trainer of Hugging Face's
// transformers prints its logs, a Python dict. Regular expressions that people have for that form find the values here,
// too. python/millrace/training_job.py prints the same form.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"

namespace millrace::jobs {

/// A line of rank 0, parsed.
struct TrainerLine {
  std::string text;                        ///< for readers: "{'loss': 2.5, 'learning_rate': 0.0003, 'step': 7}"
  std::optional<std::uint64_t> step = {};  ///< of the figures in the line
  bool starts = false;                     ///< a plan: an attempt starts
  std::optional<std::uint64_t> resumed_from = {};
};

/// Reads the output of rank 0, line by line: JSON, or the text that millrace-train prints without --json. Lines of
/// other programs come back as they are. One thread at a time.
class TrainerTranscript {
 public:
  TrainerLine Read(std::string_view line);
  /// Returns the line that transformers' Trainer prints at its end; nothing if no step was read.
  std::optional<std::string> Summary(Duration ran) const;

 private:
  using Values = std::vector<std::pair<std::string, Json>>;
  std::optional<TrainerLine> ReadJson(std::string_view line);
  std::optional<TrainerLine> ReadText(std::string_view line);
  TrainerLine Step(std::uint64_t step, const Json& loss, const Json& grad_norm, const Json& rate);
  TrainerLine Evaluation(std::uint64_t step, Values metrics) const;
  Json Epoch(std::uint64_t step) const;

  std::uint64_t steps_per_epoch_ = 0, global_batch_ = 0, resumed_from_ = 0;  ///< of the plan
  std::uint64_t step_ = 0, losses_ = 0;
  double sum_of_losses_ = 0;
};

}  // namespace millrace::jobs
