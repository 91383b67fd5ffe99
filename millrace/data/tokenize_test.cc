#include "millrace/data/tokenize.h"

#include <gmock/gmock.h>

#include "millrace/base/hash/random.h"
#include "millrace/data/formats/megatron.h"
#include "millrace/data/testing/testing.h"
#include "millrace/data/token_parts.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::data {
namespace {

using testing::ByteTokenizer;
using ::testing::HasSubstr;
using testing::MakeTexts;
using testing::PutText;
using ::testing::SizeIs;
using testing::ToJsonl;

class TokenizeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    connection_["source"] = input_;
    connection_["target"] = output_;
    for (int f = 0; f < 6; ++f) {
      auto texts = MakeTexts(fmt::format("f{}", f), 600, 100, f + 1);
      texts_.insert(texts_.end(), texts.begin(), texts.end());
      PutText(*input_, fmt::format("d/{}.jsonl", f), ToJsonl(texts) + "broken\n");
    }
  }
  TokenizeOptions Options() {
    return {.sources = {{"s3://source/d/"}}, .output = "s3://target/sets/tokens", .part_bytes = 8 * kKiB};
  }
  Result<TokenizeSummary> Run(const TokenizeOptions& options) {
    return TokenizeToFile(connection_, tokenizer_, options, {}, {});
  }
  std::string Read(const std::string& key) {
    return object::GetAll(*output_, key, kGiB).value().value_or(object::Content{"absent"}).bytes;
  }
  std::vector<std::string> Keys() {
    std::vector<std::string> keys;
    auto listed = object::ListAll(*output_, {}, [&](const object::ListPage& page) {
      for (const auto& info : page.objects) keys.push_back(info.key);
      return true;
    });
    EXPECT_TRUE(listed);
    return keys;
  }
  /// Returns the output by the definition.
  std::pair<std::string, std::string> Expected(bool eod) {
    std::string bin, idx;
    TokenTableWriter table(2);
    for (const std::string& text : texts_) {
      std::vector<TokenId> ids;
      EXPECT_TRUE(tokenizer_.Encode(text, ids));
      if (eod) ids.push_back(2);
      AppendTokens(ids, 2, bin);
      table.AddDocument(static_cast<std::uint32_t>(ids.size()));
    }
    EXPECT_TRUE(table.Write([&](ByteSpan bytes) -> Status {
      idx += AsText(bytes);
      return {};
    }));
    return {bin, idx};
  }

  std::shared_ptr<object::Store> input_ = object::MakeMemoryStore();
  std::shared_ptr<object::Store> output_ =
      object::MakeMemoryStore({.limits = {.min_part = 20 * kKiB, .max_parts = 100}});
  testing::TestConnection connection_;
  ByteTokenizer tokenizer_;
  std::vector<std::string> texts_;
};

TEST_F(TokenizeTest, IsTheDocumentsInOrder) {
  for (bool eod : {true, false}) {
    auto options = Options();
    options.append_eod = eod;
    auto run = Run(options);
    ASSERT_TRUE(run) << run.error().ToString();
    const TokenizeSummary& summary = *run;
    auto [bin, idx] = Expected(eod);
    EXPECT_EQ(Read("sets/tokens.bin"), bin);
    EXPECT_EQ(Read("sets/tokens.idx"), idx);
    EXPECT_EQ(summary.documents, 3600u);
    EXPECT_EQ(summary.tokens, bin.size() / 2);
    EXPECT_EQ(summary.broken, 6u);
    EXPECT_GT(summary.parts, 10u);
    EXPECT_EQ(summary.resumed, 0u);
    EXPECT_THAT(Keys(), SizeIs(2)) << "the parts are gone";
  }
}

/// As Megatron-LM's writer does it, so that documents have the numbers of the records.
TEST_F(TokenizeTest, EmptyTextsAreDocumentsWithoutTokens) {
  texts_ = {"", "the mill", "", "the wheel", ""};
  PutText(*input_, "e/0.jsonl", ToJsonl(texts_));
  auto options = Options();
  options.sources = {{"s3://source/e/"}};
  const TokenizeSummary summary = Run(options).value();
  std::string with_ends;
  TokenTableWriter table(2);
  for (const std::string& text : texts_) {
    std::vector<TokenId> ids;
    ASSERT_TRUE(tokenizer_.Encode(text, ids));
    if (!ids.empty()) ids.push_back(2);
    table.AddDocument(static_cast<std::uint32_t>(ids.size()));
  }
  ASSERT_TRUE(table.Write([&](ByteSpan bytes) -> Status {
    with_ends += AsText(bytes);
    return {};
  }));
  EXPECT_EQ(Read("sets/tokens.idx"), with_ends);
  EXPECT_EQ(summary.documents, 5u);
  EXPECT_EQ(summary.broken, 0u);
}

TEST_F(TokenizeTest, IsASourceThatNeedsNoMore) {
  ASSERT_TRUE(Run(Options()));
  DatasetOptions text{.sources = {{"s3://source/d/"}}, .sequence_length = 64, .shuffle_window = 0};
  DatasetOptions tokens = text;
  tokens.sources = {{"s3://target/sets/tokens"}};
  auto tokenizer = std::make_shared<ByteTokenizer>(tokenizer::kNoToken, 2);
  auto a = Dataset::Open(connection_, tokenizer, text, {}).value();
  auto b = Dataset::Open(connection_, tokenizer, tokens, {}).value();
  ASSERT_EQ(a->samples_per_epoch(), b->samples_per_epoch());
  std::vector<TokenId> row_a(128), row_b(128);
  for (std::uint64_t i = 0; i < a->samples_per_epoch(); ++i) {
    ASSERT_TRUE(a->ReadSample(0, i, std::span(row_a).first(64), std::span(row_a).last(64)));
    ASSERT_TRUE(b->ReadSample(0, i, std::span(row_b).first(64), std::span(row_b).last(64)));
    ASSERT_EQ(row_a, row_b);
  }
}

/// After a failure of any call to the store, the next run yields the same bytes.
TEST_F(TokenizeTest, GoesOnWhereverItWasStopped) {
  auto [bin, idx] = Expected(true);
  const auto inner = output_;
  std::size_t resumed = 0;
  for (int calls = 0; calls < 160; calls += 7) {
    auto faulty = object::FaultStore::Create(inner);
    faulty->Add({.skip = calls, .times = -1, .fault = {.code = Code::kIo}});
    connection_["target"] = faulty;
    bool first = Run(Options()).has_value();
    connection_["target"] = inner;
    if (first) {
      EXPECT_EQ(Read("sets/tokens.bin"), bin);
    } else {
      EXPECT_TRUE(Read("sets/tokens.idx") == "absent" || Read("sets/tokens.idx") == idx);
    }
    auto second = Run(Options()).value();
    resumed += second.resumed;
    EXPECT_EQ(Read("sets/tokens.bin"), bin);
    EXPECT_EQ(Read("sets/tokens.idx"), idx);
    EXPECT_THAT(Keys(), SizeIs(2));
    ASSERT_TRUE(object::DeleteMany(*output_, Keys()));
  }
  EXPECT_GT(resumed, 20u);
}

/// A share that fails at any call to the store is run again.
TEST_F(TokenizeTest, SharesMakeTheBytesOfOne) {
  const auto [bin, idx] = Expected(true);
  const auto inner = output_;
  constexpr std::uint32_t kShares = 3;
  for (int calls = 0; calls < 60; calls += 11) {
    std::size_t parts = 0, own_parts = 0;
    for (const std::uint32_t share : {2U, 1U, 0U}) {
      auto options = Options();
      options.share = {.index = share, .count = kShares};
      auto faulty = object::FaultStore::Create(inner);
      faulty->Add({.skip = calls, .times = -1, .fault = {.code = Code::kIo}});
      connection_["target"] = faulty;
      const bool passed = Run(options).has_value();
      connection_["target"] = inner;
      EXPECT_TRUE(share == 0 || Read("sets/tokens.idx") == "absent");
      if (passed && share == 0) continue;
      const auto summary = Run(options).value();
      EXPECT_EQ(summary.joined, share == 0);
      EXPECT_EQ(summary.documents, share == 0 ? 3600U : 0U);
      parts = summary.parts;
      own_parts += summary.own_parts;
    }
    EXPECT_EQ(own_parts, parts);
    EXPECT_EQ(Read("sets/tokens.bin"), bin);
    EXPECT_EQ(Read("sets/tokens.idx"), idx);
    EXPECT_THAT(Keys(), SizeIs(2)) << "the parts are gone";
    ASSERT_TRUE(object::DeleteMany(*output_, Keys()));
  }
}

TEST_F(TokenizeTest, OtherInputIsNotGoneOnWith) {
  auto faulty = object::FaultStore::Create(output_);
  faulty->Add({.operation = object::Operation::kPut, .skip = 9, .times = -1, .fault = {.code = Code::kIo}});
  connection_["target"] = faulty;
  ASSERT_FALSE(Run(Options()));
  connection_["target"] = output_;
  PutText(*input_, "d/1.jsonl", ToJsonl({"another text"}));
  auto summary = Run(Options()).value();
  EXPECT_EQ(summary.resumed, 0u);
  EXPECT_EQ(summary.documents, 3001u);
  EXPECT_THAT(Keys(), SizeIs(2)) << "what the first run left is gone too";
}

TEST_F(TokenizeTest, SaysWhatIsWrong) {
  auto options = Options();
  options.output = "s3://target/sets/";
  EXPECT_EQ(Run(options).error().code(), Code::kInvalidArgument);
  ByteTokenizer no_end(1, tokenizer::kNoToken);
  EXPECT_THAT(TokenizeToFile(connection_, no_end, Options(), {}, {}).error().ToString(), HasSubstr("--no-append-eod"));
  ASSERT_TRUE(Run(Options()));
  options = Options();
  options.sources = {{"s3://target/sets/tokens"}};
  EXPECT_THAT(Run(options).error().ToString(), HasSubstr("is tokenized already"));
}

/// Every byte is uploaded once, in order. Only the last part is small. Long ranges are copied.
TEST(TokenParts, UploadsAreCutByTheStoresLimits) {
  Random random(9);
  for (int round = 0; round < 300; ++round) {
    object::Limits limits{.min_part = 100, .max_part = 1000};
    std::vector<StoredTokenPart> parts(random.Below(12));
    std::uint64_t total = 0, seen = 0;
    for (StoredTokenPart& part : parts) {
      part.tokens_at = random.Below(50);
      part.info.size = part.tokens_at + random.Below(random.Below(2) ? 150 : 3000);
      total += part.info.size - part.tokens_at;
    }
    auto steps = PlanUpload(parts, limits);
    std::size_t at = 0;
    std::uint64_t offset = parts.empty() ? 0 : parts[0].tokens_at;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      EXPECT_TRUE(steps[i].bytes >= 100 || i + 1 == steps.size());
      EXPECT_LE(steps[i].bytes, steps[i].copied ? 1000u : 100u);
      for (const auto& range : steps[i].ranges) {
        while (offset == parts[at].info.size) offset = parts[++at].tokens_at;
        EXPECT_EQ(range.part, at);
        EXPECT_EQ(range.range.offset, offset);
        offset += range.range.length;
        seen += range.range.length;
      }
    }
    EXPECT_EQ(seen, total);
  }
}

TEST(TokenParts, DamageIsNoticed) {
  auto store = object::MakeMemoryStore();
  TokenPart part;
  part.AddDocument(std::vector<TokenId>{1, 2, 3}, 2);
  part.AddDocument({}, 2);
  std::string good = part.Serialize();
  auto read = [&](const std::string& bytes) {
    PutText(*store, "p", bytes);
    return ReadStoredTokenPart(*store, object::Head(*store, "p").value().value(), {});
  };
  auto stored = read(good).value();
  EXPECT_EQ(stored.lengths, part.lengths);
  EXPECT_EQ(good.substr(stored.tokens_at), part.tokens);
  for (std::size_t cut = 1; cut < stored.tokens_at; ++cut) EXPECT_FALSE(read(good.substr(0, cut))) << cut;
  for (std::size_t i = 0; i < stored.tokens_at; ++i) {
    if (i >= 20 && i < 24) continue;  // nothing is there
    std::string bad = good;
    bad[i] ^= 4;
    EXPECT_FALSE(read(bad)) << i;
  }
}

}  // namespace
}  // namespace millrace::data
