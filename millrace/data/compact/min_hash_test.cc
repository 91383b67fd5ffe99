#include "millrace/data/compact/min_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "millrace/base/hash/random.h"

namespace millrace::data {
namespace {

/// Two sets of `size` elements in their union, of which `shared` are in both.
struct SetPair {
  std::vector<std::uint64_t> a, b;
};
SetPair MakePair(Random& random, std::size_t size, std::size_t shared) {
  SetPair pair;
  for (std::size_t i = 0; i < size; ++i) {
    const std::uint64_t element = random.Next();
    if (i < shared || i % 2 == 0) pair.a.push_back(element);
    if (i < shared || i % 2 == 1) pair.b.push_back(element);
  }
  return pair;
}

double Estimate(const SetPair& pair) {
  return EstimateSimilarity(ToSignature(MinHash(pair.a)), ToSignature(MinHash(pair.b)));
}

/// Over many pairs, the estimates have the mean and the variance of a share of 128 independent trials.
TEST(MinHash, EstimatesTheJaccardSimilarity) {
  Random random(7);
  constexpr int kPairs = 400;
  for (const std::size_t size : {20, 300, 5000}) {
    for (const double similarity : {0.0, 0.3, 0.5, 0.8, 0.95, 1.0}) {
      const auto shared = static_cast<std::size_t>(std::lround(similarity * static_cast<double>(size)));
      const double truth = static_cast<double>(shared) / static_cast<double>(size);
      double sum = 0, squares = 0;
      for (int i = 0; i < kPairs; ++i) {
        const double estimate = Estimate(MakePair(random, size, shared));
        sum += estimate;
        squares += (estimate - truth) * (estimate - truth);
      }
      const double variance = truth * (1 - truth) / kMinHashes;
      EXPECT_NEAR(sum / kPairs, truth, 5 * std::sqrt(variance / kPairs) + 1e-4) << size << ' ' << similarity;
      EXPECT_LE(squares / kPairs, 1.6 * variance + 1e-6) << size << ' ' << similarity;
    }
  }
}

TEST(MinHash, DependsOnTheSetAlone) {
  Random random(3);
  SetPair pair = MakePair(random, 1000, 1000);
  const MinHashValues values = MinHash(pair.a);
  std::ranges::reverse(pair.a);
  pair.a.insert(pair.a.end(), pair.b.begin(), pair.b.begin() + 50);
  EXPECT_EQ(MinHash(pair.a), values);
  EXPECT_EQ(MinHash({})[5], UINT32_MAX);
}

/// Signatures are compared between runs and machines, so the hash functions are fixed.
TEST(MinHash, ReferenceValues) {
  const std::array<std::uint64_t, 3> elements = {1, 2, 0xDEADBEEF};
  const MinHashValues values = MinHash(elements);
  Random random(0x4D696E48617368);
  for (const std::uint32_t value : values) {
    const auto factor = static_cast<std::uint32_t>(random.Next()) | 1,
               offset = static_cast<std::uint32_t>(random.Next());
    EXPECT_EQ(value, std::min({factor + offset, 2 * factor + offset, 0xDEADBEEF * factor + offset}));
  }
}

TEST(Banding, FindsPairsAtTheThreshold) {
  for (double threshold = 0.5; threshold <= 1.0; threshold += 0.01) {
    const Banding banding = Banding::For(threshold);
    EXPECT_LE(banding.bands * banding.rows, kMinHashes);
    EXPECT_GE(banding.Probability(threshold), 0.95) << threshold;
    EXPECT_LT(banding.Probability(threshold / 2), 0.6) << threshold;
  }
  EXPECT_EQ(Banding::For(0.8).bands, 18u);
  EXPECT_EQ(Banding::For(0.8).rows, 7u);
  EXPECT_EQ(Banding::For(1.0).rows, kMinHashes);
}

/// The share of pairs that agree in a band is as the formula says.
TEST(Banding, CandidatesAreAsOftenAsPredicted) {
  Random random(11);
  constexpr int kPairs = 1000;
  const Banding banding = Banding::For(0.8);
  for (const std::size_t percent : {30, 50, 60, 70, 80, 90}) {
    int found = 0;
    for (int i = 0; i < kPairs; ++i) {
      const SetPair pair = MakePair(random, 400, 4 * percent);
      std::vector<std::uint32_t> a, b;
      AppendBandHashes(MinHash(pair.a), banding, a);
      AppendBandHashes(MinHash(pair.b), banding, b);
      ASSERT_EQ(a.size(), banding.bands);
      for (std::size_t band = 0; band < banding.bands; ++band) {
        if (a[band] != b[band]) continue;
        ++found;
        break;
      }
    }
    const double p = banding.Probability(static_cast<double>(percent) / 100);
    EXPECT_NEAR(found, kPairs * p, 5 * std::sqrt(kPairs * p * (1 - p)) + 10) << percent;
  }
}

TEST(Banding, BandsOfEqualValuesDiffer) {
  std::vector<std::uint32_t> hashes;
  AppendBandHashes(MinHash({}), {16, 8}, hashes);
  std::ranges::sort(hashes);
  EXPECT_EQ(std::ranges::unique(hashes).size(), 0u);
}

}  // namespace
}  // namespace millrace::data
