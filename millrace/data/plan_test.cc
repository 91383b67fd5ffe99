#include "millrace/data/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "millrace/data/permutation.h"

namespace millrace::data {
namespace {

TEST(Permutation, IsABijectionOfEverySmallDomain) {
  for (std::uint64_t size = 1; size <= 300; ++size) {
    for (std::uint64_t key : {0ull, 1ull, ~0ull, 0x1234567890ull}) {
      Permutation permutation(size, key);
      std::vector<bool> seen(size);
      for (std::uint64_t i = 0; i < size; ++i) {
        std::uint64_t image = permutation(i);
        ASSERT_LT(image, size);
        ASSERT_FALSE(seen[image]) << size << " " << key;
        seen[image] = true;
      }
    }
  }
}

TEST(Permutation, IsABijectionOfALargeDomain) {
  for (std::uint64_t size : {262'144ull, 262'145ull, 1'000'003ull}) {
    Permutation permutation(size, 99);
    std::vector<bool> seen(size);
    for (std::uint64_t i = 0; i < size; ++i) seen[permutation(i)] = true;
    EXPECT_EQ(std::ranges::count(seen, true), static_cast<std::ptrdiff_t>(size));
  }
  Permutation huge((1ull << 63) + 12345, 4);
  EXPECT_LT(huge(17), huge.size());
}

TEST(Permutation, NeverChanges) {
  Permutation permutation(1000, 42);
  std::vector<std::uint64_t> images;
  for (std::uint64_t i = 0; i < 6; ++i) images.push_back(permutation(i));
  EXPECT_EQ(images, (std::vector<std::uint64_t>{378, 421, 567, 523, 102, 728}));
}

/// Every element goes everywhere equally often, and so do pairs of neighbours: chi-squared over many keys.
TEST(Permutation, ScattersEvenly) {
  constexpr int kSize = 10, kKeys = 20'000;
  std::vector<int> places(kSize * kSize), pairs(kSize * kSize);
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    Permutation permutation(kSize, Mix64(key));
    for (int i = 0; i < kSize; ++i) ++places[i * kSize + permutation(i)];
    ++pairs[permutation(3) * kSize + permutation(4)];
  }
  double chi = 0, expected = kKeys / 10.0;
  for (int count : places) chi += (count - expected) * (count - expected) / expected;
  EXPECT_LT(chi, 150) << "81 degrees of freedom";
  chi = 0, expected = kKeys / 90.0;
  for (int i = 0; i < kSize * kSize; ++i) {
    if (i / kSize != i % kSize) chi += (pairs[i] - expected) * (pairs[i] - expected) / expected;
  }
  EXPECT_LT(chi, 160) << "89 degrees of freedom";
}

/// Indexes of objects whose records have the given numbers of tokens; a record takes `bytes` bytes.
RecordIndex MakeIndex(const std::vector<std::uint32_t>& tokens, std::uint64_t bytes) {
  RecordIndexBuilder builder;
  for (std::size_t i = 0; i < tokens.size(); ++i) builder.Add(i * bytes, bytes, tokens[i]);
  return builder.Finish().value();
}

std::vector<std::uint32_t> RandomTokens(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::uint32_t> tokens(count);
  for (auto& t : tokens) t = static_cast<std::uint32_t>(random.Below(2000));
  return tokens;
}

/// The documents of an epoch in order, as (object, record), from the plan's windows.
std::vector<std::pair<std::uint32_t, std::uint64_t>> Documents(const Plan& plan, std::uint64_t epoch_number) {
  EpochOrder epoch = plan.OrderOf(epoch_number);
  std::vector<std::pair<std::uint32_t, std::uint64_t>> documents;
  for (std::size_t w = 0; w + 1 < epoch.windows.size(); ++w) {
    WindowOrder window = plan.OrderOf(epoch, w);
    for (std::uint32_t k = 0; k < window.documents(); ++k) {
      auto place = window.Document(k);
      documents.emplace_back(place.chunk, place.record);
    }
  }
  return documents;
}

struct PlanCase {
  Mode mode;
  std::uint64_t window;
};

class PlanOrder : public ::testing::TestWithParam<PlanCase> {
 protected:
  void SetUp() override {
    for (std::size_t i = 0; i < 3; ++i) indexes_.push_back(MakeIndex(RandomTokens(700 + 300 * i, i), 5000));
    sources_ = {{"a", 1.0}, {"b", 2.0}, {"c", 0.3}};
    by_source_ = {{0}, {1}, {2}};
  }
  Plan Make(std::uint64_t seed = 1) {
    return Plan::Make(indexes_, by_source_, sources_,
                      {.mode = GetParam().mode,
                       .sequence_length = 512,
                       .seed = seed,
                       .window = GetParam().window,
                       .added_tokens = 2})
        .value();
  }
  std::vector<RecordIndex> indexes_;
  std::vector<Source> sources_;
  std::vector<std::vector<std::uint32_t>> by_source_;
};

TEST_P(PlanOrder, EveryDocumentAsOftenAsItsWeightSaysAndTheSameSetEachEpoch) {
  Plan plan = Make();
  std::map<std::pair<std::uint32_t, std::uint64_t>, int> first;
  std::map<std::uint32_t, std::uint64_t> per_object;
  for (const auto& document : Documents(plan, 0)) {
    ++first[document];
    ++per_object[plan.chunks()[document.first].object];
  }
  EXPECT_EQ(per_object[0], 700u);
  EXPECT_EQ(per_object[1], 2000u);
  EXPECT_EQ(per_object[2], 390u);
  EXPECT_EQ(plan.records(), 3090u);
  for (const auto& [document, times] : first) {
    EXPECT_EQ(times, plan.chunks()[document.first].object == 1 ? 2 : 1);
  }
  std::map<std::pair<std::uint32_t, std::uint64_t>, int> second;
  for (const auto& document : Documents(plan, 1)) ++second[document];
  EXPECT_EQ(first, second);
  if (GetParam().window > 1) {
    EXPECT_NE(Documents(plan, 0), Documents(plan, 1));
    EXPECT_NE(Documents(plan, 0), Documents(Make(2), 0));
  }
  EXPECT_EQ(Documents(plan, 5), Documents(Make(), 5));
}

TEST_P(PlanOrder, LengthIsExact) {
  Plan plan = Make();
  std::uint64_t units = 0;
  for (const auto& [chunk, record] : Documents(plan, 3)) {
    units += GetParam().mode == Mode::kPad ? 1 : plan.Extents(chunk)[record].tokens + 2;
  }
  EXPECT_EQ(plan.units(), units);
  EXPECT_EQ(plan.samples(), GetParam().mode == Mode::kPad ? units : (units - 1) / 512);
}

TEST_P(PlanOrder, FindsEveryUnit) {
  Plan plan = Make();
  EpochOrder epoch = plan.OrderOf(2);
  std::uint64_t unit = 0;
  for (std::size_t w = 0; w + 1 < epoch.windows.size(); ++w) {
    WindowOrder window = plan.OrderOf(epoch, w);
    ASSERT_EQ(window.first_unit, unit);
    for (std::uint32_t k = 0; k < window.documents(); ++k) {
      auto place = window.Document(k);
      std::uint32_t length = GetParam().mode == Mode::kPad ? 1 : plan.Extents(place.chunk)[place.record].tokens + 2;
      for (std::uint64_t probe : {unit, unit + length - 1}) {
        ASSERT_EQ(epoch.Find(probe), w);
        auto hit = window.Find(static_cast<std::uint32_t>(probe - window.first_unit));
        ASSERT_EQ(hit.document, k);
        ASSERT_EQ(window.first_unit + hit.start, unit);
      }
      unit += length;
    }
  }
  EXPECT_EQ(unit, plan.units());
}

TEST_P(PlanOrder, WindowsAreBoundedAndReadTheirChunksOnly) {
  Plan plan = Make();
  EpochOrder epoch = plan.OrderOf(0);
  for (std::size_t w = 0; w + 1 < epoch.windows.size(); ++w) {
    WindowOrder window = plan.OrderOf(epoch, w);
    std::uint64_t bytes = 0;
    std::vector<std::uint32_t> chunks;
    for (const Piece& piece : window.pieces) {
      chunks.push_back(piece.chunk);
      bytes += plan.chunks()[piece.chunk].bytes;
    }
    EXPECT_EQ(plan.ChunksOf(epoch, w), chunks);
    EXPECT_LE(bytes, kWindowBytes);
    EXPECT_LE(bytes, epoch.largest_window_bytes);
    if (GetParam().window > 1) {
      EXPECT_LT(window.documents(), GetParam().window + kChunkBytes / 5000 + 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, PlanOrder,
                         ::testing::Values(PlanCase{Mode::kPack, 262'144}, PlanCase{Mode::kPack, 300},
                                           PlanCase{Mode::kPack, 0}, PlanCase{Mode::kPad, 300},
                                           PlanCase{Mode::kPad, 1}));

TEST(Plan, UnshuffledKeepsTheOrderOfTheSources) {
  std::vector<RecordIndex> indexes;
  indexes.push_back(MakeIndex(RandomTokens(500, 1), 5000));
  indexes.push_back(MakeIndex(RandomTokens(500, 2), 5000));
  std::vector<std::vector<std::uint32_t>> by_source = {{1}, {0}};
  std::vector<Source> sources = {{"b", 1.0}, {"a", 0.5}};
  Plan plan = Plan::Make(indexes, by_source, sources, {.sequence_length = 64, .window = 1, .added_tokens = 1}).value();
  auto documents = Documents(plan, 4);
  ASSERT_EQ(documents.size(), 750u);
  EXPECT_EQ(plan.chunks()[documents[499].first].object, 1u);
  EXPECT_EQ(plan.chunks()[documents[500].first].object, 0u);
  EXPECT_TRUE(std::is_sorted(documents.begin() + 500, documents.end()));
}

TEST(Plan, ChunksAreBoundedAndHugeRecordsStandAlone) {
  RecordIndexBuilder builder;
  builder.Add(0, 100, 1);
  builder.Add(100, 3 * kChunkBytes, 5);
  builder.Add(100 + 3 * kChunkBytes, 100, 1);
  std::uint64_t far = 10 * kMiB;  // behind lines that nobody owns
  builder.Add(far, 100, 1);
  builder.Add(far + 100, 100, 1);
  std::vector<RecordIndex> indexes;
  indexes.push_back(builder.Finish().value());
  std::vector<std::vector<std::uint32_t>> by_source = {{0}};
  std::vector<Source> sources = {{"a", 1.0}};
  Plan plan = Plan::Make(indexes, by_source, sources, {.sequence_length = 4, .window = 10, .added_tokens = 1}).value();
  std::vector<std::pair<std::uint64_t, std::uint32_t>> chunks;
  for (const Chunk& chunk : plan.chunks()) chunks.emplace_back(chunk.offset, chunk.records);
  EXPECT_EQ(chunks, (std::vector<std::pair<std::uint64_t, std::uint32_t>>{
                        {0, 1}, {100, 1}, {100 + 3 * kChunkBytes, 1}, {far, 2}}));
  EXPECT_EQ(plan.Extents(3)[1], (RecordExtent{far + 100, 100, 1}));
}

TEST(Plan, LessThanOneSampleIsAnError) {
  std::vector<RecordIndex> indexes;
  indexes.push_back(MakeIndex({3}, 100));
  std::vector<std::vector<std::uint32_t>> by_source = {{0}};
  std::vector<Source> sources = {{"a", 1.0}};
  EXPECT_TRUE(Plan::Make(indexes, by_source, sources, {.sequence_length = 4, .added_tokens = 2}).has_value());
  auto short_one = Plan::Make(indexes, by_source, sources, {.sequence_length = 5, .added_tokens = 2});
  EXPECT_EQ(short_one.error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::data
