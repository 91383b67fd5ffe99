// Data for tests of whole runs: a small corpus, and the tokenizer in testdata.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/json.h"

namespace millrace::train {

/// Sentences with some order in them, so that a model has something to learn.
inline std::string Corpus(int records) {
  const std::string_view words[] = {"the",   "mill",  "race",  "turns", "water",
                                    "wheel", "stone", "grain", "flour", "bread"};
  Random random(5);
  std::string lines;
  for (int i = 0; i < records; ++i) {
    std::string text;
    std::uint64_t word = random.Below(10);
    for (int j = 0; j < 30; ++j) {
      text += std::string(words[word]) + (j % 7 == 6 ? ". " : " ");
      word = (word * 3 + random.Below(2)) % 10;
    }
    lines += DumpJson({{"text", text}}) + "\n";
  }
  return lines;
}

/// corpus.jsonl and tokenizer.model (300 pieces: bytes, and the corpus's words and parts of them).
inline void WriteCorpus(const std::filesystem::path& folder) {
  ASSERT_TRUE(WriteFileAtomic(folder / "corpus.jsonl", AsBytes(Corpus(400))));
  const char* source = std::getenv("MILLRACE_SOURCE");
  const auto model = ReadFile(std::filesystem::path(source ? source : ".") / "millrace/train/testdata/tokenizer.model");
  ASSERT_TRUE(model) << model.error().ToString();
  ASSERT_TRUE(WriteFileAtomic(folder / "tokenizer.model", AsBytes(*model)));
}

}  // namespace millrace::train
