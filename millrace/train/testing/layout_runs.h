// Runs of all families in all layouts, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/engine/config/families.h"
#include "millrace/plan/layout.h"
#include "millrace/train/testing/train_runs.h"

namespace millrace::train {

using engine::PipelineSchedule;
using engine::Recompute;

/// The families that the layouts divide. kBert learns masked tokens and next sentences; kMaskedBert, which is not among
/// the pairs, masked tokens alone.
enum Family { kLlama, kQwen3, kGpt2, kGptJ, kBert, kFamilies, kMaskedBert = kFamilies };

/// A layout by its choices. Two layouts that differ in one choice differ in one number.
struct Choices {
  enum Axis {
    kFamily,
    kTensor,
    kSequence,
    kPipeline,
    kSchedule,
    kData,
    kShard,
    kZero,
    kRecompute,
    kMicroBatch,
    kPrecision,
    kAxes
  };
  std::array<int, kAxes> at{};
  int operator[](Axis axis) const { return at[axis]; }

  bool bf16() const { return at[kPrecision] == 1; }
  int ranks() const { return at[kTensor] * at[kPipeline] * at[kData]; }
  engine::ParallelOptions Parallel() const {
    return {.data = at[kData],
            .shard = at[kShard],
            .tensor = at[kTensor],
            .sequence = at[kSequence] == 1,
            .pipeline = at[kPipeline],
            .schedule = static_cast<PipelineSchedule>(at[kSchedule]),
            .virtual_stages = at[kSchedule] == static_cast<int>(PipelineSchedule::kInterleaved) ? 2 : 1,
            .zero = at[kZero],
            .reshard = (at[kData] + at[kPipeline]) % 2 == 0,
            .recompute = static_cast<Recompute>(std::min(at[kRecompute], 2)),
            .recompute_every = at[kRecompute] == 3 ? 2 : 1};
  }
  bool IsValid() const {
    const bool interleaved = at[kSchedule] == static_cast<int>(PipelineSchedule::kInterleaved);
    return ranks() <= 8 && at[kData] % at[kShard] == 0 && (at[kShard] > 1) == (at[kZero] > 0) &&
           (at[kTensor] > 1 || at[kSequence] == 0) &&
           (at[kPipeline] > 1 || at[kSchedule] == static_cast<int>(PipelineSchedule::k1F1B)) &&
           (!interleaved || at[kPipeline] == 2);  // the models have four blocks
  }
  std::string ToText() const {
    static constexpr const char* kNames[] = {"family", "tensor", "sequence",  "pipeline",    "schedule", "data",
                                             "shard",  "zero",   "recompute", "micro_batch", "bf16"};
    std::string text;
    for (std::size_t axis = 0; axis < kAxes; ++axis) text += fmt::format("{} {} ", kNames[axis], at[axis]);
    return text;
  }
};

inline const std::vector<std::vector<int>>& Values() {
  static const std::vector<std::vector<int>> kValues = {{kLlama, kQwen3, kGpt2, kGptJ, kBert},
                                                        {1, 2},
                                                        {0, 1},
                                                        {1, 2, 4},
                                                        {0, 1, 2, 3},
                                                        {1, 2, 4},
                                                        {1, 2, 4},
                                                        {0, 1, 2, 3},
                                                        {0, 1, 2, 3},
                                                        {1, 2},
                                                        {0, 1}};
  return kValues;
}

inline std::vector<Choices> AllLayouts() {
  std::vector<Choices> all{{}};
  for (std::size_t axis = 0; axis < Choices::kAxes; ++axis) {
    std::vector<Choices> longer;
    for (Choices choices : all) {
      for (const int value : Values()[axis]) {
        choices.at[axis] = value;
        longer.push_back(choices);
      }
    }
    all = std::move(longer);
  }
  std::erase_if(all, [](const Choices& choices) { return !choices.IsValid(); });
  return all;
}

/// Returns few layouts that have every pair of choices that some layout has.
inline std::vector<Choices> PairwiseLayouts() {
  using Pair = std::array<int, 4>;
  const auto pairs_of = [](const Choices& choices) {
    std::vector<Pair> pairs;
    for (int a = 0; a < Choices::kAxes; ++a) {
      for (int b = a + 1; b < Choices::kAxes; ++b) pairs.push_back({a, choices.at[a], b, choices.at[b]});
    }
    return pairs;
  };
  std::vector<Choices> all = AllLayouts(), chosen;
  std::ranges::stable_sort(all, {}, &Choices::ranks);  // of equals, the cheapest is taken
  std::set<Pair> missing;
  for (const Choices& choices : all) {
    for (const Pair& pair : pairs_of(choices)) missing.insert(pair);
  }
  while (!missing.empty()) {
    const auto gain = [&](const Choices& choices) {
      return std::ranges::count_if(pairs_of(choices), [&](const Pair& pair) { return missing.contains(pair); });
    };
    const Choices best = *std::ranges::max_element(all, {}, gain);
    for (const Pair& pair : pairs_of(best)) missing.erase(pair);
    chosen.push_back(best);
  }
  return chosen;
}

/// The run as the planner sees it, on one machine.
inline plan::TrainingSetup SetupOf(const Options& options, int ranks) {
  plan::TrainingSetup setup{.model = engine::ParseModelConfig(options.model_config, "config.json").value()->Shape(),
                            .ranks = ranks,
                            .ranks_per_machine = ranks,
                            .global_batch = options.global_batch,
                            .micro_batch = options.micro_batch,
                            .sequence_length = options.data.sequence_length,
                            .bf16 = options.precision == at::kBFloat16};
  setup.model.Freeze(options.freeze);
  if (options.lora) setup.model.Adapt(*options.lora);
  return setup;
}

class LayoutsTest : public TrainTest {
 protected:
  static constexpr std::uint64_t kSteps = 20;
  /// A layout sums in another order, so bfloat16 rounds some values the other way: by 2^-9 of a value.
  /// The mean over the 256 tokens of a step averages the roundings of their losses: 2^-9 / √256. The largest difference
  /// measured is 2^-14.5; one rank's own bfloat16 differs from its float32 by up to 2^-11.5.
  static constexpr double kBf16Losses = 0x1p-13;
  /// Weights that begin at zero are sums of updates, which differ by some roundings of gradients: four of 2^-9. The
  /// largest difference measured is 2^-8.
  static constexpr double kBf16Weights = 0x1p-7;
  /// BERT predicts 40 tokens in a step, not 256: fewer roundings average out. The largest difference measured is
  /// 2^-6.3.
  static constexpr double kBf16BertWeights = 0x1p-5;

  using Model = std::pair<int, bool>;  ///< family, and whether in bfloat16

  LayoutsTest() {
    EXPECT_TRUE(WriteFileAtomic(folder_->path() / "vocab.txt", AsBytes(kVocabulary)));
    std::filesystem::create_directories(folder_->path() / "sentences");
    EXPECT_TRUE(WriteFileAtomic(folder_->path() / "sentences/sentences.jsonl", AsBytes(Sentences())));
  }

  static constexpr std::string_view kVocabulary =
      "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n.\nthe\nmill\nrace\nturns\nwater\nwheel\nstone\ngrain\nflour\nbread\n";
  /// The planner takes BERT to predict 0.15 of the tokens: of a row of 32 tokens, 5.
  static constexpr std::uint32_t kPredictedInRow = 5;

  /// Texts for BERT: each fits in a row, and each of its sentences has more than kPredictedInRow tokens.
  static std::string Sentences() {
    constexpr std::array kWords = {"the",   "mill",  "race",  "turns", "water",
                                   "wheel", "stone", "grain", "flour", "bread"};
    Random random(5);
    std::string lines;
    for (int i = 0; i < 200; ++i) {
      std::string text;
      std::uint64_t word = random.Below(10);
      for (int j = 0; j < 24; ++j) {
        text += std::string(kWords[word]) + (j % 6 == 5 ? ". " : " ");
        word = (word * 3 + random.Below(2)) % 10;
      }
      lines += DumpJson({{"text", text}}) + "\n";
    }
    return lines;
  }

  Options OptionsOf(int family, int micro_batch = 2, bool bf16 = false) const {
    Options options = Tiny("layouts");
    if (bf16) options.precision = at::kBFloat16;
    options.steps = kSteps;
    options.micro_batch = micro_batch;
    options.checkpoint.every_steps = 100;  // at the end, and where a run stops
    options.schedule = {.lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 3};
    // Large enough that gradients which are zero by mathematics, as of key biases, do not become steps of ±lr.
    options.optimizer.method = engine::AdamwOptions{.eps = 1e-5};
    switch (family) {
      case kLlama:
        options.model_config.update({{"num_hidden_layers", 4}});
        break;
      case kQwen3:
        options.model_config = {{"model_type", "qwen3"},
                                {"hidden_size", 32},
                                {"intermediate_size", 48},
                                {"num_hidden_layers", 4},
                                {"num_attention_heads", 4},
                                {"num_key_value_heads", 2},
                                {"head_dim", 8},
                                {"max_position_embeddings", 32},
                                {"tie_word_embeddings", true}};
        break;
      case kBert:
      case kMaskedBert:
        options.model_config = {{"model_type", "bert"},   {"hidden_size", 32},        {"intermediate_size", 48},
                                {"num_hidden_layers", 4}, {"num_attention_heads", 4}, {"max_position_embeddings", 32}};
        engine::SetHeads(options.model_config, {.tokens = true, .rows = family == kBert}, 2);
        options.tokenizer_url = (folder_->path() / "vocab.txt").native();
        options.data.sources = {{.url = (folder_->path() / "sentences/").native()}};
        options.data.objective = data::Objective::kMlm;
        options.data.mlm = {.probability = 0.3,
                            .max_predictions = kPredictedInRow,
                            .next_sentence = family == kBert,
                            .short_sequences = 0};
        break;
      default:
        options.model_config = {{"model_type", family == kGpt2 ? "gpt2" : "gptj"},
                                {"n_embd", 32},
                                {"n_layer", 4},
                                {"n_head", 4},
                                {"n_positions", 32},
                                {"rotary_dim", 4},
                                {"embd_pdrop", 0.1},
                                {"attn_pdrop", 0.1},
                                {"resid_pdrop", 0.1}};
    }
    return options;
  }
  Options OptionsOf(const Choices& choices) const {
    Options options = OptionsOf(choices[Choices::kFamily], choices[Choices::kMicroBatch], choices.bf16());
    options.parallel = choices.Parallel();
    return options;
  }

  /// Expects the weights in the last checkpoints of two runs to be the same but for rounding. In bfloat16 these are the
  /// float32 master copies.
  void ExpectSameWeights(const std::string& url, const std::string& other, const Model& model,
                         const std::string& what) {
    const auto [family, bf16] = model;
    const double bf16_tolerance = family == kBert ? kBf16BertWeights : kBf16Weights;
    const auto left = Tensors(url, kSteps), right = Tensors(other, kSteps);
    ASSERT_EQ(left.size(), right.size());
    std::size_t compared = 0;
    for (const auto& [name, bytes] : left) {
      if (!name.starts_with(bf16 ? "optimizer/master/" : "model/")) continue;
      ++compared;
      const auto tensor = [](const std::string& raw) {
        return at::from_blob(const_cast<char*>(raw.data()), {static_cast<std::int64_t>(raw.size() / 4)}, at::kFloat);
      };
      const double norm = tensor(right.at(name)).norm().item<double>();
      EXPECT_LE((tensor(bytes) - tensor(right.at(name))).norm().item<double>(),
                (bf16 ? bf16_tolerance : 1e-5) * std::max(norm, 1e-2))
          << what << name;
    }
    EXPECT_GT(compared, 10U);
  }
};

}  // namespace millrace::train
