#include "millrace/data/compact/near_index.h"

#include <gtest/gtest.h>

#include <map>

#include "millrace/base/hash/random.h"
#include "millrace/data/compact/digest_index.h"

namespace millrace::data {
namespace {

struct Signed {
  MinHashSignature signature;
  std::vector<std::uint32_t> bands;
};
Signed Sign(const std::vector<std::uint64_t>& elements, Banding banding) {
  const MinHashValues values = MinHash(elements);
  Signed made{.signature = ToSignature(values), .bands = {}};
  AppendBandHashes(values, banding, made.bands);
  return made;
}

/// The index finds what comparing each text with all kept texts finds, but for pairs that share no band.
TEST(NearIndex, IsComparingWithAllKeptTexts) {
  constexpr double kThreshold = 0.8;
  const Banding banding = Banding::For(kThreshold);
  NearIndex index(banding, kThreshold);
  Random random(5);
  std::vector<std::vector<std::uint64_t>> sets;
  std::vector<std::pair<std::uint64_t, MinHashSignature>> kept;
  int found = 0, missed = 0;
  for (std::uint64_t place = 0; place < 4000; ++place) {
    std::vector<std::uint64_t> set;
    if (!sets.empty() && random.Below(2) == 0) {
      set = sets[random.Below(sets.size())];
      for (std::uint64_t n = random.Below(40); n > 0; --n) set[random.Below(set.size())] = random.Next();
    } else {
      for (int i = 0; i < 200; ++i) set.push_back(random.Next());
    }
    sets.push_back(set);
    const Signed made = Sign(set, banding);
    const auto match = index.FindOrAdd(made.signature, made.bands, place);
    bool resembles = false;
    for (const auto& [earlier, signature] : kept) {
      const double similarity = EstimateSimilarity(signature, made.signature);
      resembles |= similarity >= kThreshold;
      if (match && match->place == earlier) {
        EXPECT_DOUBLE_EQ(match->similarity, similarity);
        EXPECT_GE(similarity, kThreshold);
      }
    }
    EXPECT_TRUE(resembles || !match);
    found += match ? 1 : 0;
    missed += resembles && !match ? 1 : 0;
    if (!match) kept.emplace_back(place, made.signature);
  }
  EXPECT_GT(found, 500);
  EXPECT_LT(missed, found / 50) << "what the bands miss";
}

/// Texts that share one band, but not enough else, do not slow down the search.
TEST(NearIndex, ACommonBandIsBounded) {
  const Banding banding = Banding::For(0.8);
  NearIndex index(banding, 0.8);
  Random random(9);
  for (std::uint64_t place = 0; place < 20'000; ++place) {
    Signed made;
    for (std::uint16_t& value : made.signature) value = static_cast<std::uint16_t>(random.Next());
    for (std::size_t i = 0; i < banding.bands; ++i) made.bands.push_back(static_cast<std::uint32_t>(random.Next()));
    made.bands[0] = 77;
    EXPECT_FALSE(index.FindOrAdd(made.signature, made.bands, place));
    EXPECT_TRUE(index.FindOrAdd(made.signature, made.bands, place)) << "by another band";
  }
  EXPECT_LT(index.bytes(), 20'000u * 904);
}

TEST(DigestIndex, IsAMap) {
  DigestIndex index;
  std::map<std::string, std::uint64_t> model;
  Random random(4);
  for (std::uint64_t place = 0; place < 50'000; ++place) {
    const std::string text = std::to_string(random.Below(30'000));
    const auto [at, added] = model.emplace(text, place);
    const auto found = index.FindOrAdd(TextDigest::Of(text), place);
    ASSERT_EQ(found.has_value(), !added);
    if (found) {
      ASSERT_EQ(*found, at->second);
    }
    if (place % 7 == 0) {
      index.Move(TextDigest::Of(text), place + 1);
      at->second = place + 1;
    }
  }
  EXPECT_LE(index.bytes(), 64u * 50'000);
}

}  // namespace
}  // namespace millrace::data
