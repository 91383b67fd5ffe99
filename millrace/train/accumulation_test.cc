// Gradients of the micro-batches of a step add up to those of the whole batch, whatever is learnt and however many
// labels each micro-batch has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "millrace/base/hash/random.h"
#include "millrace/data/loader.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/tokenizer/open/open.h"
#include "millrace/train/micro_batch.h"
#include "millrace/train/testing/train_runs.h"

namespace millrace::train {
namespace {

using data::kIgnoreLabel;

constexpr int kRows = 12;  // of a whole batch

/// Rows `first` to `first + count` of a batch, as the loader would give them.
data::Batch RowsOf(const data::Batch& whole, int first, int count) {
  const auto cut = [&](const std::vector<std::int32_t>& values, int each) {
    if (values.empty()) return values;
    return std::vector(values.begin() + first * each, values.begin() + (first + count) * each);
  };
  const auto count_labels = [](const std::vector<std::int32_t>& labels) {
    return labels.size() - static_cast<std::size_t>(std::ranges::count(labels, kIgnoreLabel));
  };
  const int length = whole.sequence_length;
  data::Batch part{.rows = count,
                   .sequence_length = length,
                   .inputs = cut(whole.inputs, length),
                   .labels = cut(whole.labels, length),
                   .first_sample = whole.first_sample + static_cast<std::uint64_t>(first),
                   .lengths = cut(whole.lengths, 1),
                   .segments = cut(whole.segments, length),
                   .row_labels = cut(whole.row_labels, 1),
                   .positions = cut(whole.positions, length)};
  for (const std::int32_t offset : whole.cu_seqlens) {
    if (offset >= first * length && offset <= (first + count) * length) {
      part.cu_seqlens.push_back(offset - first * length);
    }
  }
  part.loss_tokens = count_labels(part.labels);
  part.loss_rows = count_labels(part.row_labels);
  return part;
}

/// Draws the sizes of parts that make up a whole batch.
std::vector<int> RandomSplit(Random& random) {
  std::vector<int> sizes;
  for (int left = kRows; left > 0; left -= sizes.back()) {
    sizes.push_back(1 + static_cast<int>(random.Below(static_cast<std::uint64_t>(std::min(left, 5)))));
  }
  return sizes;
}

/// An objective with its options, and what its data must have.
struct Learning {
  std::string_view name;
  data::Objective objective = data::Objective::kCausalLm;
  data::SequenceMode mode = data::SequenceMode::kPack;
  bool boundaries = false;
  bool next_sentence = false;
  engine::ops::LossOptions loss = {};
  bool some_rows_lack_labels = false;
};
std::ostream& operator<<(std::ostream& out, const Learning& learning) { return out << learning.name; }

class AccumulationTest : public TrainTest, public testing::WithParamInterface<Learning> {
 protected:
  AccumulationTest() {
    // "watermills" is longer than the words that short rows may hide, so with whole words nothing of them is hidden.
    constexpr std::string_view kVocabulary =
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n.\nthe\nmill\nrace\nwater\n##mill\n##s\n##turn\n";
    Write("vocab.txt", std::string(kVocabulary));
    constexpr std::array<std::string_view, 6> kWords = {"the", "mill", "race", "water", "watermills", "waterturn"};
    std::string texts, answers, classes = "sentence\tlabel\n";
    Random random(31);
    const auto words = [&](std::uint64_t count) {
      std::string text;
      for (std::uint64_t i = 0; i < count; ++i) text += std::string(kWords[random.Below(kWords.size())]) + " ";
      return text + ".";
    };
    for (int i = 0; i < 120; ++i) {
      texts += DumpJson({{"text", i % 3 == 0 ? "watermills" : words(1 + random.Below(30))}}) + "\n";
      // Some prompts leave no room for an answer. These records are left out.
      const Json record = {{"prompt", words(i % 4 == 0 ? 40 : 2)}, {"response", words(1 + random.Below(6))}};
      answers += DumpJson(record) + "\n";
      classes += fmt::format("{}\t{}\n", words(1 + random.Below(12)), i % 2);
    }
    std::filesystem::create_directories(folder_->path() / "accumulation");
    Write("accumulation/texts.json", texts);
    Write("accumulation/answers.json", answers);
    Write("accumulation/classes.tsv", classes);
  }
  static void Write(const std::string& name, const std::string& content) {
    EXPECT_TRUE(WriteFileAtomic(folder_->path() / name, AsBytes(content)));
  }

  static Options OptionsOf(const Learning& learning, const Options& tiny) {
    Options options = tiny;
    options.global_batch = kRows;
    options.steps = 2;
    options.loss = learning.loss;
    options.data.objective = learning.objective;
    options.data.mode = learning.mode;
    options.data.boundaries = learning.boundaries;
    const auto source = [&](std::string_view name) {
      options.data.sources = {{.url = (folder_->path() / "accumulation" / name).native(),
                               .format = name.ends_with(".json") ? "jsonl" : ""}};
    };
    source("texts.json");
    if (learning.mode == data::SequenceMode::kSft) {
      source("answers.json");
      options.data.template_text = "{prompt}";
    }
    if (learning.objective == data::Objective::kCausalLm) {
      options.model_config["vocab_size"] = 300;
      return options;
    }
    options.tokenizer_url = (folder_->path() / "vocab.txt").native();
    options.model_config = {{"model_type", "bert"},         {"vocab_size", 13},         {"hidden_size", 32},
                            {"num_hidden_layers", 2},       {"num_attention_heads", 4}, {"intermediate_size", 48},
                            {"max_position_embeddings", 32}};
    if (learning.objective == data::Objective::kClassification) {
      source("classes.tsv");
      engine::SetHeads(options.model_config, {.rows = true}, options.classes);
    } else {
      options.data.mlm = {.whole_word = true, .next_sentence = learning.next_sentence, .short_sequences = 0.3};
      engine::SetHeads(options.model_config, {.tokens = true, .rows = learning.next_sentence}, options.classes);
    }
    return options;
  }
  Options OptionsOf(const Learning& learning) const { return OptionsOf(learning, Tiny("accumulation")); }

  static std::vector<data::Batch> WholeBatches(const Options& options, int count) {
    const auto connection = object::OpenConnection({}).value();
    const auto tokenizer = tokenizer::OpenTokenizer(*connection, options.tokenizer_url, {}).value();
    const std::shared_ptr dataset = data::Dataset::Open(*connection, tokenizer, options.data, {}).value();
    MemoryBudget budget(options.memory_budget);
    const auto loader =
        data::Loader::Start(dataset, budget, {.global_batch = kRows, .micro_batch = kRows}, {}, {}).value();
    std::vector<data::Batch> batches;
    while (static_cast<int>(batches.size()) < count) batches.push_back(loader->Next().value());
    return batches;
  }
};

/// What a model learns from the parts of a batch.
struct Learnt {
  double loss = 0;
  std::vector<at::Tensor> gradients;
};

Learnt LearnFrom(engine::Model& model, const data::Batch& whole, const std::vector<int>& sizes,
                 const engine::ops::LossOptions& loss) {
  const LabelCounts labels{.tokens = whole.loss_tokens, .rows = whole.loss_rows};
  Learnt learnt;
  model.buffer().gradients().zero_();
  int first = 0;
  for (const int size : sizes) {
    MicroBatch part(RowsOf(whole, first, size), at::kCPU);
    part.batch.dropout = engine::ops::DropoutRows{
        .seed = 3, .step = 5, .first_sample = part.data.first_sample, .row_length = whole.sequence_length};
    part.batch.loss = loss;
    part.batch.row_loss_weight = labels.row_weight();
    const at::Tensor sum = model.LossSum(part.batch);
    sum.backward();
    learnt.loss += sum.item<double>();
    first += size;
  }
  for (const engine::NamedParameter& parameter : model.Parameters()) {
    learnt.gradients.push_back(parameter.gradient.clone());
  }
  return learnt;
}

TEST_P(AccumulationTest, RandomPartsOfABatchHaveTheGradientsOfTheWhole) {
  const Options options = OptionsOf(GetParam());
  const auto config = engine::ParseModelConfig(options.model_config, "config.json").value();
  const auto model = engine::MakeModel(config, at::kFloat, at::kCPU, 11, {}).value();
  model->buffer().EnableGradients();
  Random random(71);
  std::set<std::uint64_t> labels_of_rows;
  for (const data::Batch& whole : WholeBatches(options, 3)) {
    for (int row = 0; row < kRows; ++row) {
      const data::Batch one = RowsOf(whole, row, 1);
      labels_of_rows.insert(one.loss_tokens);
    }
    const Learnt want = LearnFrom(*model, whole, {kRows}, options.loss);
    for (int trial = 0; trial < 4; ++trial) {
      const std::vector<int> sizes = trial == 0 ? std::vector<int>(kRows, 1) : RandomSplit(random);
      SCOPED_TRACE(testing::PrintToString(sizes));
      const Learnt got = LearnFrom(*model, whole, sizes, options.loss);
      EXPECT_NEAR(got.loss, want.loss, 2e-6 * want.loss);
      for (std::size_t i = 0; i < want.gradients.size(); ++i) {
        const double norm = want.gradients[i].norm().item<double>();
        EXPECT_LE((got.gradients[i] - want.gradients[i]).norm().item<double>(), 1e-5 * std::max(norm, 1e-2))
            << model->Parameters()[i].name;
      }
    }
  }
  const bool varies = GetParam().objective == data::Objective::kMlm || GetParam().mode != data::SequenceMode::kPack ||
                      GetParam().boundaries;
  EXPECT_EQ(labels_of_rows.size() > 1, varies) << "rows differ in their numbers of labels";
  if (GetParam().some_rows_lack_labels) EXPECT_TRUE(labels_of_rows.contains(0));
  if (GetParam().mode == data::SequenceMode::kSft) EXPECT_FALSE(labels_of_rows.contains(0));
}

TEST_P(AccumulationTest, MicroBatchesOfARunLearnWhatTheWholeBatchLearns) {
  Options options = OptionsOf(GetParam());
  options.micro_batch = kRows;
  const Ran whole = Run(options);
  ASSERT_TRUE(whole.outcome) << whole.outcome.error().ToString();
  struct Cut {
    int ranks, micro_batch;
    engine::ParallelOptions parallel;
  };
  for (const Cut& cut :
       {Cut{1, 1, {}}, Cut{1, 3, {}}, Cut{2, 1, {.zero = 3}}, Cut{2, 1, {.tensor = 2, .sequence = true}},
        Cut{2, 1, {.pipeline = 2, .schedule = engine::PipelineSchedule::kZeroBubble}}}) {
    SCOPED_TRACE(fmt::format("{} ranks, micro-batches of {}", cut.ranks, cut.micro_batch));
    options.micro_batch = cut.micro_batch;
    options.parallel = cut.parallel;
    const Ran parts = RunRanks(options, cut.ranks);
    ASSERT_TRUE(parts.outcome) << parts.outcome.error().ToString();
    for (const auto& [step, loss] : whole.losses) {
      EXPECT_NEAR(parts.losses.at(step), loss, 2e-6 * loss) << step;
      EXPECT_NEAR(parts.norms.at(step), whole.norms.at(step), 1e-5 * whole.norms.at(step)) << step;
    }
  }
}

using enum data::Objective;
using enum data::SequenceMode;
INSTANTIATE_TEST_SUITE_P(
    Learnings, AccumulationTest,
    testing::Values(Learning{.name = "packed"}, Learning{.name = "boundaries", .boundaries = true},
                    Learning{.name = "padded", .mode = kPad}, Learning{.name = "answers", .mode = kSft},
                    Learning{
                        .name = "answers_smoothed", .mode = kSft, .loss = {.label_smoothing = 0.1, .z_loss = 1e-2}},
                    Learning{.name = "smoothed", .boundaries = true, .loss = {.label_smoothing = 0.2}},
                    Learning{.name = "z_loss", .loss = {.z_loss = 1e-2}},
                    Learning{.name = "masked", .objective = kMlm, .some_rows_lack_labels = true},
                    Learning{.name = "pairs",
                             .objective = kMlm,
                             .next_sentence = true,
                             .loss = {.label_smoothing = 0.1, .z_loss = 1e-2},
                             .some_rows_lack_labels = true},
                    Learning{.name = "classes", .objective = kClassification}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace millrace::train
