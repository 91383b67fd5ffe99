// A data set for BERT on a corpus in memory, with a small WordPiece vocabulary, and its rows.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/data/batch/sequence_row.h"
#include "millrace/data/testing/dataset_fixture.h"
#include "millrace/tokenizer/formats/load.h"

namespace millrace::data::testing {

inline constexpr std::string_view kBertVocabulary =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\ndog\nsat\non\nmat\nred\nran\n.\n,\nun\n##aff\n##able\n##s\n##ed\n";

/// One row, and its tokens as words.
struct BertRow {
  std::string words;
  std::vector<TokenId> inputs, labels;
  std::vector<std::int32_t> segments, positions;
  std::int32_t row_label = 0, length = 0;
  bool operator==(const BertRow&) const = default;
};

class BertTest : public DatasetTest {
 protected:
  BertTest() { tokenizer_ = tokenizer::Load(AsBytes(kBertVocabulary), "vocab.txt").value(); }

  BertRow Read(Dataset& dataset, std::uint64_t epoch, std::uint64_t sample) const {
    const auto length = static_cast<std::size_t>(dataset.options().sequence_length);
    BertRow made{.inputs = std::vector<TokenId>(length, -1),
                 .labels = std::vector<TokenId>(length, -1),
                 .segments = std::vector<std::int32_t>(length, -1),
                 .positions = std::vector<std::int32_t>(length, -1)};
    SequenceRow row{
        .inputs = made.inputs, .labels = made.labels, .positions = made.positions, .segments = made.segments};
    auto read = dataset.ReadSample(epoch, sample, row);
    if (!read) ADD_FAILURE() << read.error().ToString();
    made.row_label = row.row_label;
    made.length = row.length;
    for (TokenId id : made.inputs) {
      made.words += fmt::format("{}{}", made.words.empty() ? "" : " ", tokenizer_->Piece(id).value());
    }
    return made;
  }
};

}  // namespace millrace::data::testing
