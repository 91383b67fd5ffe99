#include "millrace/data/order/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "millrace/data/order/permutation.h"

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

/// Over many keys, elements and pairs of neighbours are at every position equally often (chi-squared).
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

/// Returns indexes of objects whose records have these numbers of tokens and `bytes` bytes each.
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

/// Returns the documents of a pass in order.
std::vector<DocumentLocation> Documents(const Plan& plan, std::uint32_t stream, std::uint64_t pass_number) {
  PassOrder pass = plan.OrderOf(stream, pass_number);
  std::vector<DocumentLocation> documents;
  std::map<std::uint32_t, std::vector<FittedRow>> fitted;
  for (std::size_t w = 0; w + 1 < pass.windows.size(); ++w) {
    WindowOrder window = plan.OrderOf(stream, pass, w);
    for (std::uint32_t k = 0; k < window.items(); ++k) {
      WindowOrder::Item item = window.At(k);
      if (!plan.options().best_fit) {
        documents.push_back(plan.DocumentOf(stream, item));
      } else {
        auto [rows, fresh] = fitted.try_emplace(item.group);
        if (fresh) rows->second = plan.FitRows(stream, item.group);
        for (DocumentLocation place : rows->second[item.number]) documents.push_back(place);
      }
    }
  }
  return documents;
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> Sorted(const std::vector<DocumentLocation>& places) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> sorted;
  for (DocumentLocation place : places) sorted.emplace_back(place.chunk, place.record);
  std::ranges::sort(sorted);
  return sorted;
}

struct PlanCase {
  SequenceMode mode;
  std::uint64_t window;
  bool best_fit = false, split_long = false;
  friend void PrintTo(const PlanCase& c, std::ostream* out) {
    *out << (c.mode == SequenceMode::kPack  ? "pack"
             : c.mode == SequenceMode::kPad ? "pad"
                                            : "sft")
         << "-" << c.window << (c.best_fit ? "-best_fit" : "") << (c.split_long ? "-split_long" : "");
  }
};

class PlanOrder : public ::testing::TestWithParam<PlanCase> {
 protected:
  static constexpr std::uint64_t kLength = 512;
  void SetUp() override {
    for (std::size_t i = 0; i < 3; ++i) indexes_.push_back(MakeIndex(RandomTokens(700 + 300 * i, i), 5000));
    sources_ = {{"a", 1.0}, {"b", 2.0}, {"c", 0.3}};
    by_source_ = {{0}, {1}, {2}};
  }
  Plan Make(std::uint64_t seed = 1) {
    return Plan::Make(indexes_, by_source_, sources_,
                      {.mode = GetParam().mode,
                       .sequence_length = kLength,
                       .seed = seed,
                       .window = GetParam().window,
                       .added_tokens = 2,
                       .best_fit = GetParam().best_fit,
                       .split_long = GetParam().split_long})
        .value();
  }
  /// Returns the units of a document by the definition.
  static std::uint64_t Units(const Plan& plan, DocumentLocation place) {
    std::uint64_t tokens = plan.Extents(place.chunk)[place.record].tokens + 2;
    if (GetParam().mode == SequenceMode::kPack) return tokens;
    return GetParam().split_long ? std::max<std::uint64_t>(1, (tokens - 1 + kLength - 1) / kLength) : 1;
  }
  std::vector<RecordIndex> indexes_;
  std::vector<DataSource> sources_;
  std::vector<std::vector<std::uint32_t>> by_source_;
};

TEST_P(PlanOrder, EveryPassHasEveryDocumentOnceInAnotherOrder) {
  Plan plan = Make();
  for (std::uint32_t s = 0; s < 3; ++s) {
    auto first = Documents(plan, s, 0), second = Documents(plan, s, 1);
    ASSERT_EQ(first.size(), 700u + 300 * s);
    auto sorted = Sorted(first);
    EXPECT_TRUE(std::ranges::adjacent_find(sorted) == sorted.end());
    EXPECT_EQ(sorted, Sorted(second));
    for (DocumentLocation place : first) ASSERT_EQ(plan.chunks()[place.chunk].object, s);
    if (GetParam().window > 1) {
      EXPECT_NE(first, second);
      EXPECT_NE(first, Documents(Make(2), s, 0));
    } else {
      EXPECT_EQ(first, second);
    }
    EXPECT_EQ(Documents(plan, s, 5), Documents(Make(), s, 5));
  }
  EXPECT_EQ(plan.records(), 700u + 1000 + 1300);
}

TEST_P(PlanOrder, EpochsGoThroughTheSourcesWithoutGapsAndByWeight) {
  Plan plan = Make();
  std::vector<std::uint64_t> next(3);
  for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
    for (std::uint64_t i = 0; i < plan.samples(); ++i) {
      auto at = plan.Locate(epoch, i);
      std::uint64_t samples = plan.streams()[at.stream].samples;
      ASSERT_EQ(at.pass * samples + at.sample, next[at.stream]++) << "each source's samples follow each other";
      ASSERT_LT(at.sample, samples);
    }
    for (std::uint32_t s = 0; s < 3; ++s) {
      auto per_epoch =
          static_cast<std::uint64_t>(sources_[s].weight * static_cast<double>(plan.streams()[s].samples) + 0.5);
      ASSERT_EQ(next[s], (epoch + 1) * per_epoch);
    }
  }
}

TEST_P(PlanOrder, LengthIsExact) {
  Plan plan = Make();
  for (std::uint32_t s = 0; s < 3; ++s) {
    std::uint64_t units = 0;
    for (DocumentLocation place : Documents(plan, s, 3)) units += Units(plan, place);
    const Stream& stream = plan.streams()[s];
    if (!GetParam().best_fit) {
      EXPECT_EQ(stream.units, units);
    }
    EXPECT_EQ(stream.samples, GetParam().mode == SequenceMode::kPack ? (units - 1) / kLength : stream.units);
  }
}

using PlanUnits = PlanOrder;
TEST_P(PlanUnits, FindsEveryUnit) {
  Plan plan = Make();
  PassOrder pass = plan.OrderOf(1, 2);
  std::uint64_t unit = 0;
  for (std::size_t w = 0; w + 1 < pass.windows.size(); ++w) {
    WindowOrder window = plan.OrderOf(1, pass, w);
    ASSERT_EQ(window.first_unit, unit);
    for (std::uint32_t k = 0; k < window.items(); ++k) {
      std::uint64_t length = Units(plan, plan.DocumentOf(1, window.At(k)));
      for (std::uint64_t probe : {unit, unit + length - 1}) {
        ASSERT_EQ(pass.Find(probe), w);
        auto hit = window.Find(static_cast<std::uint32_t>(probe - window.first_unit));
        ASSERT_EQ(hit.item, k);
        ASSERT_EQ(window.first_unit + hit.start, unit);
      }
      unit += length;
    }
  }
  EXPECT_EQ(unit, plan.streams()[1].units);
}

TEST_P(PlanOrder, WindowsAreBoundedAndTheirPiecesComeInTheOrderOfUse) {
  Plan plan = Make();
  std::uint64_t all = 0;
  for (std::uint32_t s = 0; s < 3; ++s) {
    PassOrder pass = plan.OrderOf(s, 0);
    all += plan.streams()[s].window_bytes;
    for (std::size_t w = 0; w + 1 < pass.windows.size(); ++w) {
      WindowOrder window = plan.OrderOf(s, pass, w);
      EXPECT_EQ(plan.GroupsOf(s, pass, w), window.groups);
      std::uint64_t bytes = 0, records = 0;
      for (std::uint32_t group : window.groups) {
        const ChunkGroup& one = plan.streams()[s].groups[group];
        for (std::uint32_t c = one.first; c < one.first + one.chunks; ++c) {
          bytes += plan.chunks()[plan.streams()[s].chunks[c]].bytes;
          records += plan.chunks()[plan.streams()[s].chunks[c]].records;
        }
      }
      EXPECT_LE(bytes, std::max(plan.streams()[s].window_bytes, kGroupBytes + kChunkBytes));
      EXPECT_LE(bytes, pass.largest_window_bytes);
      if (GetParam().window > 1 && !GetParam().best_fit) {
        EXPECT_LT(records, plan.streams()[s].window_records + kChunkBytes / 5000 + 1);
      }
      auto use = window.FirstUse(0);
      EXPECT_EQ(use.size(), window.groups.size());
      EXPECT_EQ(window.groups[use[0]], window.At(0).group);
    }
  }
  EXPECT_LE(all, kShuffleWindowBytes + 3);
}

using PlanRows = PlanOrder;
TEST_P(PlanRows, HoldWholeDocumentsAndLittlePadding) {
  Plan plan = Make();
  std::uint64_t tokens = 0, rows = 0, long_ones = 0;
  for (std::uint32_t s = 0; s < 3; ++s) {
    for (std::uint32_t p = 0; p < plan.streams()[s].groups.size(); ++p) {
      auto fitted = plan.FitRows(s, p);
      ASSERT_EQ(fitted.size(), plan.streams()[s].groups[p].items);
      for (const FittedRow& row : fitted) {
        std::uint64_t sum = 0;
        for (DocumentLocation place : row) {
          std::uint64_t length = plan.Extents(place.chunk)[place.record].tokens + 2;
          long_ones += length > kLength + 1;
          sum += std::min(length, kLength + 1);
        }
        ASSERT_LE(sum, kLength + 1);
        tokens += sum;
      }
      rows += fitted.size();
    }
  }
  EXPECT_EQ(plan.truncated(), long_ones);
  EXPECT_GT(static_cast<double>(tokens) / static_cast<double>(rows * (kLength + 1)), 0.97);
}

std::vector<PlanCase> Cases(bool fitted) {
  if (fitted)
    return {{SequenceMode::kPad, 300, true}, {SequenceMode::kSft, 262'144, true}, {SequenceMode::kSft, 0, true}};
  return {{SequenceMode::kPack, 262'144}, {SequenceMode::kPack, 300}, {SequenceMode::kPack, 0},
          {SequenceMode::kPad, 300},      {SequenceMode::kPad, 1},    {SequenceMode::kPad, 300, false, true},
          {SequenceMode::kSft, 300}};
}
INSTANTIATE_TEST_SUITE_P(Streams, PlanOrder, ::testing::ValuesIn(Cases(false)));
INSTANTIATE_TEST_SUITE_P(Fitted, PlanOrder, ::testing::ValuesIn(Cases(true)));
INSTANTIATE_TEST_SUITE_P(Streams, PlanUnits, ::testing::ValuesIn(Cases(false)));
INSTANTIATE_TEST_SUITE_P(Fitted, PlanRows, ::testing::ValuesIn(Cases(true)));

TEST(Plan, UnshuffledKeepsEachSourcesOrder) {
  std::vector<RecordIndex> indexes;
  indexes.push_back(MakeIndex(RandomTokens(500, 1), 5000));
  indexes.push_back(MakeIndex(RandomTokens(500, 2), 5000));
  std::vector<std::vector<std::uint32_t>> by_source = {{1, 0}};
  std::vector<DataSource> sources = {{"b", 1.0}};
  Plan plan = Plan::Make(indexes, by_source, sources, {.sequence_length = 64, .window = 1, .added_tokens = 1}).value();
  auto documents = Documents(plan, 0, 4);
  ASSERT_EQ(documents.size(), 1000u);
  EXPECT_EQ(plan.chunks()[documents[499].chunk].object, 1u);
  EXPECT_EQ(plan.chunks()[documents[500].chunk].object, 0u);
  auto sorted = Sorted(documents);
  EXPECT_TRUE(std::equal(documents.begin(), documents.begin() + 500, sorted.begin() + 500,
                         [](DocumentLocation a, auto b) { return a.chunk == b.first && a.record == b.second; }));
}

/// Finding a sample takes no time proportional to its index, even among 10^10 samples.
TEST(Plan, TenThousandMillionSamples) {
  std::vector<RecordIndex> indexes;
  indexes.push_back(MakeIndex(std::vector<std::uint32_t>(4000, 4'000'000'000u), 512 * kKiB));
  std::vector<std::vector<std::uint32_t>> by_source = {{0}, {0}};
  std::vector<DataSource> sources = {{"a", 1.0}, {"b", 0.6}};
  Plan plan = Plan::Make(indexes, by_source, sources, {.sequence_length = 2048, .window = 100}).value();
  EXPECT_GT(plan.samples(), 10'000'000'000u);
  for (std::uint64_t epoch : {0ull, 7ull, 1ull << 40}) {
    auto at = plan.Locate(epoch, plan.samples() - 1);
    EXPECT_LT(at.sample, plan.streams()[at.stream].samples);
    PassOrder pass = plan.OrderOf(at.stream, at.pass);
    EXPECT_EQ(pass.windows.back().first_unit, 4000 * 4'000'000'000ull);
    EXPECT_LT(pass.Find(at.sample * 2048), pass.windows.size() - 1);
  }
}

/// Measures the figures of data/README.md. Two records of one chunk are as far apart as two random places of a window.
/// Records of other chunks are as far apart as two random places of the pass.
TEST(Plan, NeighboursLandFarApart) {
  constexpr std::size_t kRecords = 40'000;
  constexpr std::uint64_t kWindow = 4'000;
  std::vector<RecordIndex> indexes;
  indexes.push_back(MakeIndex(std::vector<std::uint32_t>(kRecords, 10), 5000));
  std::vector<std::vector<std::uint32_t>> by_source = {{0}};
  std::vector<DataSource> sources = {{"a", 1.0}};
  Plan plan =
      Plan::Make(indexes, by_source, sources, {.mode = SequenceMode::kPad, .sequence_length = 64, .window = kWindow})
          .value();
  auto documents = Documents(plan, 0, 0);
  std::vector<std::size_t> place(kRecords);
  for (std::size_t i = 0; i < kRecords; ++i) {
    place[plan.chunks()[documents[i].chunk].first_document + documents[i].record] = i;
  }
  std::vector<double> distance;
  double chunk_distance = 0;
  std::size_t chunk_pairs = 0, next_to_each_other = 0;
  for (std::size_t i = 0; i + 1 < kRecords; ++i) {
    auto apart = static_cast<double>(std::max(place[i], place[i + 1]) - std::min(place[i], place[i + 1]));
    distance.push_back(apart);
    next_to_each_other += apart == 1;
  }
  for (std::size_t c = 0; c + 1 < plan.chunks().size(); ++c, ++chunk_pairs) {
    auto a = static_cast<double>(place[plan.chunks()[c].first_document]);
    auto b = static_cast<double>(place[plan.chunks()[c + 1].first_document]);
    chunk_distance += std::abs(a - b);
  }
  std::ranges::sort(distance);
  double window = kWindow + 50;  // up to a chunk more
  auto quantile = [&](double q) { return distance[static_cast<std::size_t>(q * (kRecords - 2))] / window; };
  // For two random places in a window, P(distance < d) = 1 - (1 - d)^2.
  for (double q : {0.05, 0.25, 0.5, 0.75, 0.95}) EXPECT_NEAR(quantile(q), 1 - std::sqrt(1 - q), 0.03) << q;
  EXPECT_LT(next_to_each_other, kRecords / 1000) << "2 of a window's 4000 pairs are expected";
  EXPECT_NEAR(chunk_distance / static_cast<double>(chunk_pairs), kRecords / 3.0, kRecords * 0.04)
      << "records of neighbouring chunks: anywhere in the pass";
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
  std::vector<DataSource> sources = {{"a", 1.0}};
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
  std::vector<DataSource> sources = {{"a", 1.0}};
  EXPECT_TRUE(Plan::Make(indexes, by_source, sources, {.sequence_length = 4, .added_tokens = 2}).has_value());
  auto short_one = Plan::Make(indexes, by_source, sources, {.sequence_length = 5, .added_tokens = 2});
  EXPECT_EQ(short_one.error().code(), Code::kInvalidArgument);
  sources[0].weight = 0.1;
  auto too_light = Plan::Make(indexes, by_source, sources, {.sequence_length = 4, .added_tokens = 2});
  EXPECT_NE(too_light.error().message().find("a weight of 0.1"), std::string::npos);
}

}  // namespace
}  // namespace millrace::data
