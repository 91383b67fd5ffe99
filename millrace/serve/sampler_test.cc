#include "millrace/serve/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace millrace::serve {
namespace {

std::vector<float> RandomLogits(Random& random, std::size_t size) {
  std::vector<float> logits(size);
  for (float& logit : logits) logit = static_cast<float>(8 * random.Uniform() - 4);
  return logits;
}

std::map<TokenId, int> Draw(SamplingOptions options, std::span<const float> logits, int times) {
  Sampler sampler(options);
  std::map<TokenId, int> counts;
  for (int i = 0; i < times; ++i) ++counts[sampler.Sample(logits)];
  return counts;
}

/// The tokens that top_k and top_p allow, by definition: sort, cut, cut again.
std::set<TokenId> Allowed(const SamplingOptions& options, std::span<const float> logits) {
  std::vector<TokenId> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<TokenId>(i);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
  if (options.top_k > 0 && static_cast<std::size_t>(options.top_k) < order.size()) order.resize(options.top_k);
  double total = 0, sum = 0;
  for (TokenId id : order) total += std::exp(logits[id] / options.temperature);
  std::set<TokenId> allowed;
  for (TokenId id : order) {
    allowed.insert(id);
    sum += std::exp(logits[id] / options.temperature);
    if (sum >= options.top_p * total * (1 + 1e-9)) break;
  }
  return allowed;
}

TEST(Sampler, GreedyTakesTheFirstOfTheLikeliest) {
  std::vector<float> logits = {1, 5, 3, 5, 2};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(Sampler({.temperature = 0, .seed = seed}).Sample(logits), 1);
  }
}

TEST(Sampler, FollowsTheSoftmax) {
  std::vector<float> logits = {0, std::log(2.0f), std::log(5.0f)};
  auto counts = Draw({.seed = 3}, logits, 40'000);
  EXPECT_NEAR(counts[0] / 40'000.0, 1 / 8.0, 0.01);
  EXPECT_NEAR(counts[1] / 40'000.0, 2 / 8.0, 0.01);
  EXPECT_NEAR(counts[2] / 40'000.0, 5 / 8.0, 0.01);
  counts = Draw({.temperature = 0.5, .seed = 3}, logits, 40'000);
  EXPECT_NEAR(counts[2] / 40'000.0, 25 / 30.0, 0.01);
}

TEST(Sampler, StaysWithinTopKAndTopP) {
  Random random(5);
  for (int round = 0; round < 200; ++round) {
    auto logits = RandomLogits(random, 2 + random.Below(400));
    SamplingOptions options{.temperature = 0.2 + 2 * random.Uniform(),
                            .top_p = random.Below(3) == 0 ? 1 : 0.05 + 0.95 * random.Uniform(),
                            .top_k = static_cast<int>(random.Below(20)),
                            .seed = random.Next()};
    auto allowed = Allowed(options, logits);
    for (auto [token, count] : Draw(options, logits, 200)) ASSERT_TRUE(allowed.contains(token)) << round;
  }
}

TEST(Sampler, TopPReachesEveryTokenItAllows) {
  std::vector<float> logits(300, 0.0f);  // more than one sorting step's worth, all alike
  EXPECT_EQ(Draw({.top_p = 0.5, .seed = 1}, logits, 20'000).size(), 150u);
  EXPECT_EQ(Draw({.top_p = 1e-6, .seed = 1}, logits, 100).size(), 1u);
  EXPECT_EQ(Draw({.top_k = 7, .seed = 1}, logits, 1000).size(), 7u);
}

TEST(Sampler, TheSameSeedGivesTheSameTokens) {
  Random random(9);
  auto logits = RandomLogits(random, 100);
  Sampler a({.top_p = 0.9, .seed = 77}), b({.top_p = 0.9, .seed = 77}), c({.top_p = 0.9, .seed = 78});
  bool differs = false;
  for (int i = 0; i < 200; ++i) {
    TokenId token = a.Sample(logits);
    ASSERT_EQ(token, b.Sample(logits));
    differs |= token != c.Sample(logits);
  }
  EXPECT_TRUE(differs);
}

TEST(Sampler, NeverDrawsWhatIsNoNumber) {
  std::vector<float> logits = {NAN, 1, -INFINITY, 2, NAN};
  for (auto [token, count] : Draw({.temperature = 5, .seed = 1}, logits, 500)) EXPECT_TRUE(token == 1 || token == 3);
  EXPECT_EQ(Sampler({.temperature = 0}).Sample(logits), 3);
  std::vector<float> none = {NAN, -INFINITY};
  EXPECT_EQ(Sampler({}).Sample(none), tokenizer::kNoToken);
  std::vector<float> infinite = {1, INFINITY, 3};
  EXPECT_EQ(Sampler({}).Sample(infinite), 1);
  std::vector<float> extreme = {-3e38f, 3e38f};
  EXPECT_EQ(Sampler({.temperature = 0.01}).Sample(extreme), 1);
}

}  // namespace
}  // namespace millrace::serve
