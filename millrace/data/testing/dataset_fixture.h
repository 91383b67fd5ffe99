// A data set on a corpus in memory, and its rows.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "millrace/data/testing/testing.h"

namespace millrace::data::testing {

class DatasetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store_ = object::MakeMemoryStore();
    connection_["corpus"] = store_;
  }

  Result<std::shared_ptr<Dataset>> Open(DatasetOptions options) {
    return Dataset::Open(connection_, tokenizer_, std::move(options), {});
  }
  static DatasetOptions Options(std::string url, SequenceMode mode = SequenceMode::kPack, std::uint64_t window = 64) {
    return {.sources = {{std::move(url), 1.0}}, .sequence_length = 32, .mode = mode, .shuffle_window = window};
  }

  /// Returns the rows of an epoch: the inputs and labels of each row.
  static std::vector<std::vector<TokenId>> Rows(Dataset& dataset, std::uint64_t epoch) {
    std::vector<std::vector<TokenId>> rows;
    std::size_t length = dataset.options().sequence_length;
    for (std::uint64_t i = 0; i < dataset.samples_per_epoch(); ++i) {
      std::vector<TokenId> row(2 * length);
      auto read = dataset.ReadSample(epoch, i, std::span(row).first(length), std::span(row).last(length));
      if (!read) ADD_FAILURE() << read.error().ToString();
      rows.push_back(std::move(row));
    }
    return rows;
  }

  /// Returns the joined stream of an epoch: all inputs, and the last label.
  static std::vector<TokenId> Stream(Dataset& dataset, std::uint64_t epoch) {
    std::vector<TokenId> stream;
    auto rows = Rows(dataset, epoch);
    std::size_t length = dataset.options().sequence_length;
    for (const auto& row : rows) stream.insert(stream.end(), row.begin(), row.begin() + length);
    stream.push_back(rows.back().back());
    return stream;
  }

  /// Cuts a stream at BOS and EOS into texts. The last text may be incomplete.
  std::vector<std::string> Texts(const std::vector<TokenId>& stream) {
    std::vector<std::string> texts;
    std::vector<TokenId> open;
    for (std::size_t i = 0; i < stream.size(); ++i) {
      if (stream[i] == 1) {
        EXPECT_TRUE(i == 0 || stream[i - 1] == 2) << "BOS follows EOS";
        open.clear();
      } else if (stream[i] == 2) {
        texts.push_back(tokenizer_->Decode(open).value());
      } else {
        open.push_back(stream[i]);
      }
    }
    if (stream.back() != 2) texts.push_back(tokenizer_->Decode(open).value());
    return texts;
  }

  std::shared_ptr<object::Store> store_;
  TestConnection connection_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_ = std::make_shared<ByteTokenizer>();
};

}  // namespace millrace::data::testing
