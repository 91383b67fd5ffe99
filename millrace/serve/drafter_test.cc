#include "millrace/serve/drafter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "millrace/base/hash/random.h"
#include "millrace/serve/scheduler.h"
#include "millrace/serve/testing.h"

namespace millrace::serve {
namespace {

/// Its logits follow from the last two tokens and a seed. `sameness` 1: as those of seed 0; 0: others.
class NoisyModel final : public LanguageModel {
 public:
  explicit NoisyModel(double sameness, CacheSize size = {.blocks = 64, .block_tokens = 4}, int context = 200)
      : sameness_(sameness), size_(size), context_(context), cached_(static_cast<std::size_t>(size.tokens())) {}
  int vocab_size() const override { return 12; }
  int context_length() const override { return context_; }
  CacheSize cache() const override { return size_; }
  Result<std::span<const float>> Step(std::span<const StepPart> parts) override {
    ++steps;
    if (fails) return Fail(Code::kResourceExhausted, "no memory");
    logits_.clear();
    for (const StepPart& part : parts) {
      const std::size_t past = static_cast<std::size_t>(part.past), end = past + part.tokens.size();
      largest = std::max(largest, part.tokens.size());
      for (std::size_t i = past; i < end; ++i) At(part, i) = part.tokens[i - past];
      for (std::size_t i = end - static_cast<std::size_t>(part.logits); i < end; ++i) {
        Random shared(static_cast<std::uint64_t>(At(part, i) * 31 + (i > 0 ? At(part, i - 1) : 0)));
        Random own(shared.Next());
        for (int token = 0; token < vocab_size(); ++token) {
          const double common = shared.Uniform(), mine = own.Uniform();
          logits_.push_back(static_cast<float>(4 * (sameness_ * common + (1 - sameness_) * mine)));
        }
      }
    }
    return std::span<const float>(logits_);
  }
  int steps = 0;
  bool fails = false;
  std::size_t largest = 0;  ///< part of a step

 private:
  TokenId& At(const StepPart& part, std::size_t i) {
    const auto in_block = static_cast<std::size_t>(size_.block_tokens);
    return cached_[static_cast<std::size_t>(part.blocks[i / in_block]) * in_block + i % in_block];
  }
  const double sameness_;
  const CacheSize size_;
  const int context_;
  std::vector<TokenId> cached_;
  std::vector<float> logits_;
};

GenerationRequest Wish(std::uint64_t seed, double temperature, int tokens = 60) {
  return {.prompt = {1, 2, 3},
          .max_tokens = tokens,
          .ends = {},
          .sampling = {.temperature = temperature, .top_p = 0.95, .seed = seed}};
}

std::vector<TokenId> TextOf(Scheduler& scheduler, GenerationRequest request) {
  auto generations = scheduler.Submit({std::move(request)}).value();
  std::vector<TokenId> made;
  while (auto token = generations[0].Next({})) made.push_back(token->token);
  EXPECT_TRUE(generations[0].result());
  return made;
}

TEST(Drafter, GuessesWhatTheSamplerWouldDraw) {
  NoisyModel model(1);
  Drafter drafter(model);
  const std::vector<TokenId> tokens{1, 2, 3};
  Drafter::Sequence sequence;
  const Sampler sampler({.temperature = 0.8, .seed = 4});
  std::vector<Drafter::DraftRequest> wanted{{&sequence, tokens, &sampler, 5, {}, {}}};
  ASSERT_TRUE(drafter.DraftTokens(wanted));
  ASSERT_EQ(wanted[0].guesses.size(), 5U);
  NoisyModel same(1);
  Scheduler scheduler(same, {.drafts = 0});
  auto request = Wish(4, 0.8, 5);
  request.sampling.top_p = 1;
  EXPECT_EQ(TextOf(scheduler, request), wanted[0].guesses);

  const std::vector<TokenId> ends{wanted[0].guesses[2]};
  const auto first = std::ranges::find(wanted[0].guesses, ends[0]) - wanted[0].guesses.begin();
  std::vector<Drafter::DraftRequest> ending{{&sequence, tokens, &sampler, 5, ends, {}}};
  ASSERT_TRUE(drafter.DraftTokens(ending));
  EXPECT_EQ(ending[0].guesses.size(), static_cast<std::size_t>(first) + 1) << "nothing follows an end";
  drafter.Release(sequence);
}

/// Drafts of any quality change no text, greedy or sampled, and good ones save steps of the model.
TEST(Drafter, TextsAreThoseWithoutADraft) {
  for (const double temperature : {0.0, 0.9}) {
    int steps_before = 0;
    for (const double sameness : {0.0, 0.7, 1.0}) {
      NoisyModel model(1), plain(1), small(sameness);
      Scheduler with(model, {.drafts = 6}, &small), without(plain, {.drafts = 0});
      for (std::uint64_t seed = 0; seed < 10; ++seed) {
        EXPECT_EQ(TextOf(with, Wish(seed, temperature)), TextOf(without, Wish(seed, temperature))) << sameness;
      }
      const SchedulerCounters counters = with.counters();
      EXPECT_GT(counters.drafted_tokens, 0U);
      if (sameness == 1.0) {
        EXPECT_EQ(counters.accepted_tokens, counters.drafted_tokens);
        EXPECT_LT(model.steps * 3, plain.steps);
      }
      if (steps_before > 0) EXPECT_LE(model.steps, steps_before) << "better drafts save more steps";
      steps_before = model.steps;
    }
  }
}

/// The tokens behind a draft follow the large model's distribution: chi-squared over the second token, whose guess is
/// often wrong.
TEST(Drafter, SampledTokensHaveTheLargeModelsDistribution) {
  NoisyModel model(1), small(0.6), exact(1);
  Scheduler scheduler(model, {.drafts = 4}, &small);
  constexpr int kTexts = 6000;
  std::map<std::pair<TokenId, TokenId>, int> counts;
  for (std::uint64_t seed = 0; seed < kTexts; ++seed) {
    auto request = Wish(seed, 1, 3);
    request.sampling.top_p = 1;
    const auto text = TextOf(scheduler, request);
    ++counts[{text[1], text[2]}];
  }
  EXPECT_GT(scheduler.counters().accepted_tokens, 0U);
  EXPECT_LT(scheduler.counters().accepted_tokens, scheduler.counters().drafted_tokens);
  // The exact probabilities of the second and the third token, by enumeration.
  const auto after = [&](TokenId a, TokenId b) {
    const std::vector<TokenId> tokens{a, b};
    const std::vector<std::int32_t> blocks{0};
    const StepPart part{.tokens = tokens, .past = 0, .blocks = blocks};
    const auto logits = exact.Step({&part, 1}).value();
    std::vector<double> weights(logits.begin(), logits.end());
    double total = 0;
    for (double& weight : weights) total += weight = std::exp(weight);
    for (double& weight : weights) weight /= total;
    return weights;
  };
  std::map<std::pair<TokenId, TokenId>, double> expected;
  const auto first = after(2, 3);
  for (TokenId a = 0; a < 12; ++a) {
    const auto second = after(3, a);
    for (TokenId b = 0; b < 12; ++b) {
      const auto third = after(a, b);
      for (TokenId c = 0; c < 12; ++c) {
        expected[{b, c}] += first[static_cast<std::size_t>(a)] * second[static_cast<std::size_t>(b)] *
                            third[static_cast<std::size_t>(c)];
      }
    }
  }
  double chi_squared = 0;
  for (const auto& [pair, probability] : expected) {
    const double want = probability * kTexts, difference = counts[pair] - want;
    chi_squared += difference * difference / want;
  }
  // 143 degrees of freedom: mean 143, standard deviation 16.9. The seeds are fixed.
  EXPECT_LT(chi_squared, 143 + 4 * 16.9);
  EXPECT_GT(chi_squared, 143 - 4 * 16.9);
}

/// Two samplers with the same random numbers agree nearly as often as two distributions allow.
TEST(Drafter, GuessesComeTrueAsOftenAsTheyShould) {
  Random random(9);
  double least = 0, agreed = 0;
  constexpr int kDraws = 20'000;
  for (int i = 0; i < kDraws; ++i) {
    std::vector<float> p(20), q(20);
    for (std::size_t t = 0; t < p.size(); ++t) {
      p[t] = static_cast<float>(3 * random.Uniform());
      q[t] = p[t] + static_cast<float>(random.Uniform());
    }
    const auto weights = [](const std::vector<float>& logits) {
      std::vector<double> all;
      double total = 0;
      for (const float logit : logits) total += all.emplace_back(std::exp(logit));
      for (double& weight : all) weight /= total;
      return all;
    };
    const auto a = weights(p), b = weights(q);
    double distance = 0;
    for (std::size_t t = 0; t < a.size(); ++t) distance += std::abs(a[t] - b[t]) / 2;
    least += (1 - distance) / (1 + distance);
    const SamplingOptions options{.seed = static_cast<std::uint64_t>(i)};
    agreed += Sampler(options).Sample(p).token == Sampler(options).Sample(q).token ? 1 : 0;
  }
  EXPECT_GT(agreed / kDraws, least / kDraws - 0.01);
}

TEST(Drafter, LongPromptsAreReadInPartsAndShared) {
  NoisyModel model(1);
  Drafter drafter(model, /*chunk=*/16);
  std::vector<TokenId> tokens(40, 5);
  const Sampler sampler({.temperature = 0});
  Drafter::Sequence first, second;
  std::vector<std::size_t> guessed;
  for (int call = 0; call < 3; ++call) {
    std::vector<Drafter::DraftRequest> wanted{{&first, tokens, &sampler, 2, {}, {}}};
    ASSERT_TRUE(drafter.DraftTokens(wanted));
    guessed.push_back(wanted[0].guesses.size());
  }
  EXPECT_EQ(guessed, (std::vector<std::size_t>{0, 0, 2}));
  EXPECT_EQ(model.largest, 16U);
  std::vector<Drafter::DraftRequest> wanted{{&second, tokens, &sampler, 2, {}, {}}};
  ASSERT_TRUE(drafter.DraftTokens(wanted));
  EXPECT_EQ(wanted[0].guesses.size(), 2U) << "the beginning was in the cache";
}

TEST(Drafter, WrongGuessesAreForgottenByTextsThatGoOnWithoutIt) {
  NoisyModel model(1);
  Drafter drafter(model);
  const Sampler sampler({.temperature = 0});
  std::vector<TokenId> tokens{1, 2, 3};
  Drafter::Sequence sequence;
  std::vector<Drafter::DraftRequest> wanted{{&sequence, tokens, &sampler, 5, {}, {}}};
  ASSERT_TRUE(drafter.DraftTokens(wanted));
  ASSERT_EQ(wanted[0].guesses.size(), 5U);
  tokens.push_back(wanted[0].guesses[0]);
  const TokenId wrong = (wanted[0].guesses[1] + 1) % 12;
  tokens.insert(tokens.end(), {wrong, 4, 5, 6, 7});
  wanted[0].tokens = tokens;
  ASSERT_TRUE(drafter.DraftTokens(wanted));
  EXPECT_EQ(model.largest, 5U) << "all behind the guess that came true";
  drafter.Release(sequence);
}

TEST(Drafter, ReadsNoTextThatIsTooLongForIt) {
  NoisyModel model(1, {.blocks = 64, .block_tokens = 4}, 42);
  Drafter drafter(model, /*chunk=*/16);
  const Sampler sampler({.temperature = 0});
  Drafter::Sequence sequence;
  std::vector<TokenId> tokens(40, 5);
  std::vector<Drafter::DraftRequest> wanted{{&sequence, tokens, &sampler, 4, {}, {}}};
  ASSERT_TRUE(drafter.DraftTokens(wanted));
  EXPECT_EQ(model.steps, 0);
  wanted[0].most = 3;
  ASSERT_TRUE(drafter.DraftTokens(wanted));
  EXPECT_EQ(model.steps, 1) << "its guesses would just fit";
  drafter.Release(sequence);
}

TEST(Drafter, TextsGoOnWithoutItsMemoryOrItsModel) {
  NoisyModel model(1), plain(1), tiny(1, {.blocks = 3, .block_tokens = 4}), broken(1),
      shorter(1, {.blocks = 64, .block_tokens = 4}, 20);
  broken.fails = true;
  Scheduler without(plain, {.drafts = 0});
  const auto expected = TextOf(without, Wish(3, 0.9));
  for (NoisyModel* draft : {&tiny, &broken, &shorter}) {
    Scheduler with(model, {}, draft);
    EXPECT_EQ(TextOf(with, Wish(3, 0.9)), expected);
    EXPECT_EQ(with.counters().failed_drafts > 0, draft == &broken);
  }
}

}  // namespace
}  // namespace millrace::serve
