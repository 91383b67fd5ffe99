// The options of a data set: its sources, and how their records become sequences.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/data/options/classification_options.h"
#include "millrace/data/options/data_source.h"
#include "millrace/data/options/held_out_split.h"
#include "millrace/data/options/mlm_options.h"
#include "millrace/data/options/objective.h"
#include "millrace/data/options/preference_templates.h"
#include "millrace/data/options/sequence_mode.h"

namespace millrace::data {

/// Plain data. Dataset::Open checks it.
struct DatasetOptions {
  std::vector<DataSource> sources;       ///< at least one
  std::string template_text = "{text}";  ///< fields of the JSON record in braces; "{{" and "}}" are braces
  int sequence_length = 256;             ///< tokens of a row
  /// Objectives other than kCausalLm ignore `mode`, `response_text` and `split_long`, and always mark the boundaries.
  /// All but kDpo ignore `layout` and `best_fit`, too.
  Objective objective = Objective::kCausalLm;
  MlmOptions mlm;                           ///< for Objective::kMlm
  ClassificationOptions classification;     ///< for Objective::kClassification; ignores template_text
  PreferenceTemplates preference;           ///< for Objective::kDpo; ignores template_text
  SequenceMode mode = SequenceMode::kPack;  ///< how documents become rows
  /// How mode sft and Objective::kDpo read a record. "alpaca", "guanaco" and "turns" (of template_text; mode sft alone)
  /// are layouts of data sets; "llama2", "llama3", "chatml", "zephyr" and "gemma" are chat templates of models. Empty:
  /// template_text is the prompt and response_text the answer; for kDpo `preference` says both.
  std::string layout;
  std::string instruction_template;          ///< layout turns: the text that begins a prompt
  std::string response_template;             ///< layout turns: the text that begins an answer
  std::string response_text = "{response}";  ///< mode sft without a layout: fields that make the answer
  /// Modes pad and sft: rows hold several whole documents. Only documents longer than a row are cut. Objective::kDpo:
  /// rows hold several pairs.
  bool best_fit = false;
  /// Mode pad: a document longer than a row becomes several rows.
  bool split_long = false;
  /// Rows mark where documents begin, so that attention can stay within a document. No label crosses into the next
  /// document.
  bool boundaries = false;
  HeldOutSplit split;              ///< which records count
  std::uint64_t shuffle_seed = 1;  ///< the same seed gives the same order
  /// Records among which the order is random. They come from chunks all over the data and have at most 64 MiB. Several
  /// sources share both limits. 0 or 1: the order of each source stays. data/README.md defines the order.
  /// 262,144: a window then fills its 64 MiB with records of 256 bytes and more.
  std::uint64_t shuffle_window = 262'144;
  /// The time for which reading retries a store that does not answer, before the run fails.
  Duration patience = std::chrono::minutes(10);
  Clock* clock = &SystemClock();  ///< must outlive the data set
  /// A folder on a local disk that keeps fetched content for later epochs. All processes of the machine that name it
  /// with the same size share it. It may be a mount's cache. Empty: none.
  std::filesystem::path disk_cache;
  std::uint64_t disk_cache_bytes = 20 * kGiB;  ///< the most bytes in `disk_cache`
  /// A run resumes only with the data that it had. True: objects of the same sizes in the same order count as the same,
  /// for stores that make them anew for each run. False: they must be the same versions.
  bool same_by_size = false;
  std::string cache_url;  ///< where indexes are stored if the data's own bucket is read-only; empty: beside the data
  /// How many records may be unusable before opening fails. Nothing: 100, or a thousandth of all if that is more.
  std::optional<std::uint64_t> max_broken;
  int threads = 2;  ///< that build an index
  /// Returns whether rows are those of BERT.
  bool IsForBert() const { return objective == Objective::kMlm || objective == Objective::kClassification; }
  /// Returns whether single tokens of the rows are learnt.
  bool LearnsTokens() const { return objective == Objective::kCausalLm || objective == Objective::kMlm; }
  /// Returns whether something of a whole row is learnt: its class, whether its second sentence follows the first one,
  /// or which of its answers is better.
  bool LearnsRows() const { return !LearnsTokens() || (objective == Objective::kMlm && mlm.next_sentence); }
  /// Returns the most tokens that attend to each other.
  int LongestDocument() const { return objective == Objective::kDpo ? sequence_length / 2 : sequence_length; }
  bool operator==(const DatasetOptions&) const = default;
};

/// Returns true if the number of samples depends on the documents' tokens. The index then stores token counts.
bool CountsTokens(const DatasetOptions& options);

}  // namespace millrace::data
