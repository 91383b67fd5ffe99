// The options of a data set: its sources, and how their records become sequences.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/data/options/classification_options.h"
#include "millrace/data/options/data_source.h"
#include "millrace/data/options/held_out_split.h"
#include "millrace/data/options/sequence_mode.h"

namespace millrace::data {

/// The task of the model.
enum class Objective : std::uint8_t {
  kCausalLm,        ///< each token from those in front of it; SequenceMode says how rows are made
  kMlm,             ///< masked tokens from the whole row, and whether one text follows another: BERT's pre-training
  kClassification,  ///< one class a row
  kDpo,             ///< the better one of a row's two answers to a prompt (direct preference optimization)
};

std::string_view ObjectiveName(Objective objective);  ///< "causal_lm", "mlm", "classification", "dpo"
/// Returns nothing if no objective has that name.
std::optional<Objective> ParseObjective(std::string_view name);

/// Plain data. The defaults are those of BERT's create_pretraining_data.py (Devlin et al., 2018). Samples that are
/// stored with their masks ignore all of them.
struct MlmOptions {
  double probability = 0.15;  ///< share of a row's tokens that are to be predicted, in (0, 1)
  /// The most tokens of a row that are to be predicted. Nothing: probability · sequence_length, rounded up.
  std::optional<std::uint32_t> max_predictions;
  bool whole_word = false;       ///< mask all pieces of a word or none
  bool next_sentence = true;     ///< rows are pairs of texts; half of them are random
  double short_sequences = 0.1;  ///< share of the rows that are cut to a random length
  bool operator==(const MlmOptions&) const = default;
};

/// Plain data. Templates as DatasetOptions::template_text. The defaults are the columns that trl reads.
struct PreferenceTemplates {
  std::string prompt = "{prompt}";      ///< what both answers answer
  std::string chosen = "{chosen}";      ///< the better answer
  std::string rejected = "{rejected}";  ///< the other one
  bool operator==(const PreferenceTemplates&) const = default;
};

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
  /// Records without a label (mode sft) do not count, unless no others are left.
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

/// Returns true if the number of samples depends on the documents' tokens, or in mode sft on where answers begin among
/// them. The index then stores token counts.
bool CountsTokens(const DatasetOptions& options);

}  // namespace millrace::data
