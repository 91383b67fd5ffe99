// Whole runs of a tiny BERT over a folder, with threads as ranks.
#pragma once

#include <gtest/gtest.h>

#include <string_view>

#include "millrace/train/testing/train_runs.h"

namespace millrace::train {

/// Words whose order says something, so that hidden ones and next sentences can be predicted.
inline constexpr std::string_view kBertVocabulary =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n.\nthe\nmill\nrace\nturns\nwater\nwheel\nstone\ngrain\nflour\nbread\n";

class BertTest : public TrainTest {
 protected:
  BertTest() {
    EXPECT_TRUE(WriteFileAtomic(folder_->path() / "vocab.txt", AsBytes(kBertVocabulary)));
    // A text with "bread" in it is of class 1.
    std::string rows = "sentence\tlabel\n";
    Random random(9);
    for (int i = 0; i < 200; ++i) {
      const bool bread = random.Below(2) == 1;
      constexpr std::string_view kOther[] = {"mill", "race", "turns", "water", "wheel", "grain", "flour"};
      const auto other = [&] { return kOther[random.Below(7)]; };
      rows += fmt::format("the {} {} {} {} {} .\t{}\n", other(), other(), bread ? "bread" : "stone", other(), other(),
                          bread ? 1 : 0);
    }
    EXPECT_TRUE(WriteFileAtomic(folder_->path() / "classes.tsv", AsBytes(rows)));
  }

  Options Bert(std::string_view run, data::Objective objective) const {
    Options options = Tiny(run);
    options.model_config = {{"model_type", "bert"},   {"hidden_size", 32},        {"intermediate_size", 48},
                            {"num_hidden_layers", 2}, {"num_attention_heads", 4}, {"max_position_embeddings", 32}};
    options.tokenizer_url = (folder_->path() / "vocab.txt").native();
    options.data.objective = objective;
    if (objective == data::Objective::kClassification) {
      options.data.sources = {{.url = (folder_->path() / "classes.tsv").native()}};
    }
    options.steps = 10;
    return options;
  }
};

}  // namespace millrace::train
