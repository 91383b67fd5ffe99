#include "millrace/serve/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "millrace/base/hash/random.h"

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
  for (int i = 0; i < times; ++i) ++counts[sampler.Sample(logits).token];
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
    EXPECT_EQ(Sampler({.temperature = 0, .seed = seed}).Sample(logits).token, 1);
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
                            .top_k = static_cast<int>(random.Below(20)),
                            .top_p = random.Below(3) == 0 ? 1 : 0.05 + 0.95 * random.Uniform(),
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
    TokenId token = a.Sample(logits).token;
    ASSERT_EQ(token, b.Sample(logits).token);
    differs |= token != c.Sample(logits).token;
  }
  EXPECT_TRUE(differs);
}

TEST(Sampler, NeverDrawsWhatIsNoNumber) {
  std::vector<float> logits = {NAN, 1, -INFINITY, 2, NAN};
  for (auto [token, count] : Draw({.temperature = 5, .seed = 1}, logits, 500)) EXPECT_TRUE(token == 1 || token == 3);
  EXPECT_EQ(Sampler({.temperature = 0}).Sample(logits).token, 3);
  std::vector<float> none = {NAN, -INFINITY};
  EXPECT_EQ(Sampler({}).Sample(none).token, tokenizer::kNoToken);
  std::vector<float> infinite = {1, INFINITY, 3};
  EXPECT_EQ(Sampler({}).Sample(infinite).token, 1);
  std::vector<float> extreme = {-3e38f, 3e38f};
  EXPECT_EQ(Sampler({.temperature = 0.01}).Sample(extreme).token, 1);
}

TEST(Sampler, MinPKeepsWhatIsNearTheLikeliest) {
  std::vector<float> logits = {std::log(8.0f), std::log(4.0f), std::log(2.0f), std::log(1.0f)};
  EXPECT_EQ(Draw({.min_p = 0.24, .seed = 1}, logits, 2000).size(), 3u);
  EXPECT_EQ(Draw({.min_p = 0.26, .seed = 1}, logits, 2000).size(), 2u);
  EXPECT_EQ(Draw({.min_p = 1, .seed = 1}, logits, 200).size(), 1u);
  // The temperature comes first: the shares are 1, 1/4 and 1/16 now.
  EXPECT_EQ(Draw({.temperature = 0.5, .min_p = 0.1, .seed = 1}, logits, 2000).size(), 2u);
}

TEST(Sampler, TypicalTokensAreThoseOfExpectedSurprise) {
  // Half of the probability is one token, the other half are 64: the entropy is 1 + 3 bits, the surprises 1 and 7.
  std::vector<float> logits(65, 0.0f);
  logits[10] = std::log(64.0f);
  auto counts = Draw({.typical_p = 0.4, .seed = 1}, logits, 500);
  EXPECT_EQ(counts.size(), 1u);
  EXPECT_TRUE(counts.contains(0) || counts.contains(10));
  EXPECT_EQ(Draw({.typical_p = 0.75, .seed = 1}, logits, 5000).size(), 33u) << "one token and half of the 64";
}

TEST(Sampler, PenaltiesCountTheTextAndThePrompt) {
  std::vector<float> logits = {3, 2.5, -1, 2};
  const std::vector<TokenId> prompt = {0};
  Sampler repeating({.repetition_penalty = 2, .temperature = 0}, prompt);
  EXPECT_EQ(repeating.Sample(logits).token, 1) << "3 / 2 < 2.5";
  EXPECT_EQ(repeating.Sample(logits).token, 3) << "2.5 / 2 < 2";
  Sampler presence({.presence_penalty = 0.6, .temperature = 0}, prompt);
  EXPECT_EQ(presence.Sample(logits).token, 0) << "the prompt does not count";
  EXPECT_EQ(presence.Sample(logits).token, 1);
  EXPECT_EQ(presence.Sample(logits).token, 0) << "2.4 against 1.9 and 2";
  EXPECT_EQ(presence.Sample(logits).token, 0);
  Sampler frequency({.frequency_penalty = 0.4, .temperature = 0});
  std::vector<TokenId> made;
  for (int i = 0; i < 5; ++i) made.push_back(frequency.Sample(logits).token);
  EXPECT_EQ(made, (std::vector<TokenId>{0, 0, 1, 0, 1})) << "3, 2.6, 2.5, 2.2, 2.1";
}

TEST(Sampler, BiasForbidsAndForces) {
  std::vector<float> logits = {3, 2, 1};
  EXPECT_EQ(Sampler({.bias = {{0, -100}}, .temperature = 0}).Sample(logits).token, 1);
  EXPECT_EQ(Sampler({.bias = {{2, 100}}, .temperature = 0}).Sample(logits).token, 2);
  EXPECT_EQ(Sampler({.bias = {{7, 100}, {-1, 100}}, .temperature = 0}).Sample(logits).token, 0) << "no such tokens";
}

TEST(Sampler, TellsLogprobsOfTheModelItself) {
  std::vector<float> logits = {std::log(1.0f), std::log(6.0f), std::log(3.0f), -INFINITY, NAN};
  const SampledToken sampled = Sampler({.bias = {{1, -100}}, .temperature = 0, .logprobs = 4}).Sample(logits);
  EXPECT_EQ(sampled.token, 2);
  EXPECT_NEAR(sampled.logprob, std::log(0.3), 1e-6);
  ASSERT_EQ(sampled.likeliest.size(), 3u);
  EXPECT_EQ(sampled.likeliest[0].token, 1);
  EXPECT_NEAR(sampled.likeliest[0].logprob, std::log(0.6), 1e-6);
  EXPECT_EQ(sampled.likeliest[2].token, 0);
  const SampledToken alone = Sampler({.temperature = 0, .logprobs = 0}).Sample(logits);
  EXPECT_NEAR(alone.logprob, std::log(0.6), 1e-6);
  EXPECT_TRUE(alone.likeliest.empty());
  EXPECT_TRUE(Sampler({.temperature = 0}).Sample(logits).likeliest.empty());
}

}  // namespace
}  // namespace millrace::serve
