#include "millrace/serve/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <map>
#include <random>

#include "millrace/serve/testing.h"

namespace millrace::serve {
namespace {

GenerationRequest Greedy(std::string_view prompt, int max_tokens = 50) {
  return {
      .prompt = Bytes(prompt), .max_tokens = max_tokens, .ends = {ByteTokenizer::kEos}, .sampling = {.temperature = 0}};
}

std::string ReadAll(Generation& generation) {
  std::string text;
  while (auto token = generation.Next({})) text.push_back(static_cast<char>(token->token));
  return text;
}

Result<Generation> SubmitOne(Scheduler& scheduler, GenerationRequest request) {
  std::vector<GenerationRequest> requests;
  requests.push_back(std::move(request));
  auto generations = MR_TRY(scheduler.Submit(std::move(requests)));
  return std::move(generations.front());
}

TEST(Scheduler, MakesTextsTogether) {
  ScriptedModel model(ScriptedModel::Says("hello"));
  Scheduler scheduler(model, {});
  auto generations = scheduler.Submit({Greedy("a>"), Greedy("b>", 3), Greedy("c>")});
  ASSERT_TRUE(generations);
  EXPECT_EQ(ReadAll(generations->at(0)), "hello");
  EXPECT_EQ(*generations->at(0).result(), FinishReason::kEnd);
  EXPECT_EQ(ReadAll(generations->at(1)), "hel");
  EXPECT_EQ(*generations->at(1).result(), FinishReason::kLength);
  EXPECT_EQ(ReadAll(generations->at(2)), "hello");
}

TEST(Scheduler, LongPromptsAreReadInChunks) {
  ScriptedModel model(ScriptedModel::Says("ok"));
  std::vector<std::size_t> chunks;
  model.on_append = [&](std::span<const TokenId> tokens) { chunks.push_back(tokens.size()); };
  {
    Scheduler scheduler(model, {.prompt_chunk = 100});
    auto generation = SubmitOne(scheduler, Greedy(std::string(249, 'x') + ">"));
    EXPECT_EQ(ReadAll(*generation), "ok");
  }
  EXPECT_EQ(chunks, (std::vector<std::size_t>{100, 100, 50, 1, 1}));
}

TEST(Scheduler, APromptIsReadBesideATextThatGoesOn) {
  ScriptedModel model(ScriptedModel::Says(std::string(30, 'x')));
  std::vector<std::vector<std::size_t>> steps;
  std::latch entered(1), leave(1);
  model.on_step = [&](std::span<const StepPart> parts) -> Status {
    std::vector<std::size_t>& step = steps.emplace_back();
    for (const StepPart& part : parts) step.push_back(part.tokens.size());
    if (steps.size() == 1) entered.count_down();
    leave.wait();
    return {};
  };
  {
    Scheduler scheduler(model, {.mixed_chunk = 20, .slowdown = 0, .drafts = 0});
    auto first = SubmitOne(scheduler, Greedy("a>", 20));
    entered.wait();
    auto others = scheduler.Submit({Greedy(std::string(50, 'y') + ">", 3), Greedy("b>", 2)});
    leave.count_down();
    EXPECT_EQ(ReadAll(*first).size(), 20U);
    EXPECT_EQ(ReadAll(others->at(0)), "xxx");
    EXPECT_EQ(ReadAll(others->at(1)), "xx");
  }
  // The short prompt leaves the rest of its part to the long one.
  const std::vector<std::vector<std::size_t>> want{{2}, {1, 2, 18}, {1, 1, 20}, {1, 13}, {1, 1}, {1, 1}, {1}};
  ASSERT_GE(steps.size(), want.size());
  steps.resize(want.size());
  for (auto& step : steps) std::ranges::sort(step);
  EXPECT_EQ(steps, want);
}

TEST(Scheduler, AdmitsAllOrNoneWithinItsLimit) {
  ScriptedModel model(ScriptedModel::Says("hello"));
  std::latch entered(1), leave(1);
  model.on_append = [&](std::span<const TokenId>) {
    if (!entered.try_wait()) entered.count_down();
    leave.wait();
  };
  Scheduler scheduler(model, {.max_admitted = 3});
  auto first = SubmitOne(scheduler, Greedy("a>"));
  entered.wait();
  EXPECT_EQ(scheduler.running(), 1);
  EXPECT_EQ(scheduler.Submit({Greedy("b>"), Greedy("c>"), Greedy("d>")}).error().code(), Code::kThrottled);
  EXPECT_EQ(scheduler.waiting(), 0);
  auto more = scheduler.Submit({Greedy("b>"), Greedy("c>")});
  EXPECT_TRUE(more);
  EXPECT_EQ(scheduler.waiting(), 2);
  EXPECT_EQ(SubmitOne(scheduler, Greedy("e>")).error().code(), Code::kThrottled);
  EXPECT_EQ(scheduler.Submit({Greedy("1"), Greedy("2"), Greedy("3"), Greedy("4")}).error().code(),
            Code::kInvalidArgument);
  leave.count_down();
  EXPECT_EQ(ReadAll(*first), "hello");
  EXPECT_EQ(ReadAll(more->at(1)), "hello");
}

TEST(Scheduler, RefusesWhatDoesNotFitTheContext) {
  ScriptedModel model(ScriptedModel::Says("hello"), 20);
  Scheduler scheduler(model, {});
  EXPECT_TRUE(SubmitOne(scheduler, Greedy("0123456789", 10)));
  EXPECT_EQ(SubmitOne(scheduler, Greedy("0123456789", 11)).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(SubmitOne(scheduler, Greedy("", 1)).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(SubmitOne(scheduler, Greedy(std::string(40, 'x'), 1)).error().code(), Code::kInvalidArgument);
}

TEST(Scheduler, RefusesWhatDoesNotFitTheCache) {
  ScriptedModel model(ScriptedModel::Says("hello"), 1000, {.blocks = 2, .block_tokens = 16});
  Scheduler scheduler(model, {});
  EXPECT_TRUE(SubmitOne(scheduler, Greedy("0123456789", 22)));
  const auto refused = SubmitOne(scheduler, Greedy("0123456789", 23));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_NE(refused.error().ToString().find("KV cache"), std::string::npos);
}

/// What follows depends on all tokens before it. With few `kinds` of tokens, texts repeat themselves.
TokenId Scrambled(std::span<const TokenId> tokens, std::uint64_t kinds = 255) {
  std::uint64_t hash = 7;
  for (const TokenId token : tokens) hash = (hash ^ static_cast<std::uint64_t>(token)) * 0x9e3779b97f4a7c15U;
  return static_cast<TokenId>((hash >> 32) % kinds);
}

std::vector<TokenId> ByDefinition(std::vector<TokenId> tokens, int count, std::uint64_t kinds = 255) {
  std::vector<TokenId> made;
  for (int i = 0; i < count; ++i) {
    made.push_back(Scrambled(tokens, kinds));
    tokens.push_back(made.back());
  }
  return made;
}

TEST(Scheduler, ATextIsTheSameInAnyBatch) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](int most) { return static_cast<int>(random() % static_cast<std::uint64_t>(most)); };
    const int blocks = 12 + below(60), block_tokens = 4 << below(2);
    const std::uint64_t kinds = seed % 2 == 0 ? 2 : 255;
    ScriptedModel model([&](std::span<const TokenId> tokens) { return Scrambled(tokens, kinds); }, 1000,
                        {.blocks = blocks, .block_tokens = block_tokens});
    Scheduler scheduler(model, {.max_admitted = 64,
                                .max_running = 1 + below(12),
                                .prompt_chunk = 1 + below(40),
                                .mixed_chunk = 1 + below(20),
                                .drafts = below(8),
                                .drafting_texts = below(12)});
    std::vector<GenerationRequest> requests;
    for (int i = 0; i < 24; ++i) {
      std::vector<TokenId> prompt(static_cast<std::size_t>(below(3)) * 10, 'p');  // some begin alike
      for (int own = 1 + below(12); own > 0; --own) prompt.push_back(below(200));
      requests.push_back({.prompt = prompt,
                          .max_tokens = 1 + below(15),
                          .ends = {},
                          .sampling = {.temperature = 0},
                          .user = below(3)});
    }
    auto generations = scheduler.Submit(requests);
    ASSERT_TRUE(generations) << generations.error().ToString();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (below(4) == 0) {
        generations->at(i).Cancel();
        continue;
      }
      std::vector<TokenId> made;
      while (auto token = generations->at(i).Next({})) made.push_back(token->token);
      EXPECT_EQ(made, ByDefinition(requests[i].prompt, requests[i].max_tokens, kinds))
          << "seed " << seed << ", text " << i;
      EXPECT_TRUE(generations->at(i).result());
    }
  }
}

TEST(Scheduler, ATextThatGaveUpItsBlocksGoesOn) {
  ScriptedModel model([](std::span<const TokenId> tokens) { return Scrambled(tokens); }, 1000,
                      {.blocks = 10, .block_tokens = 4});
  Scheduler scheduler(model, {});
  std::vector<GenerationRequest> requests;
  for (TokenId i = 0; i < 3; ++i) {
    requests.push_back({.prompt = {i, 1, 2, 3, 4}, .max_tokens = 30, .ends = {}, .sampling = {.temperature = 0}});
  }
  auto generations = scheduler.Submit(requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    std::vector<TokenId> made;
    while (auto token = generations->at(i).Next({})) made.push_back(token->token);
    EXPECT_EQ(made, ByDefinition(requests[i].prompt, 30)) << i;
  }
  EXPECT_GE(scheduler.counters().preemptions, 2U);
  EXPECT_EQ(scheduler.counters().used_blocks, 0);
}

/// A text of period four, so that its end can always be guessed. Which one depends on all tokens of the prompt.
TokenId Periodic(std::span<const TokenId> tokens, std::size_t prompt) {
  return static_cast<TokenId>(static_cast<std::size_t>(Scrambled(tokens.first(prompt), 4)) + tokens.size()) % 4;
}

TEST(Scheduler, APreemptionDropsGuesses) {
  constexpr std::size_t kPrompt = 5;
  SchedulerCounters all;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](int most) { return static_cast<int>(random() % static_cast<std::uint64_t>(most)); };
    const auto next = [](std::span<const TokenId> tokens) { return Periodic(tokens, kPrompt); };
    const int block_tokens = 2 + below(4), longest = 8 + below(30);
    const int blocks = (static_cast<int>(kPrompt) + longest) / block_tokens + 1 + below(6);
    ScriptedModel model(next, 1000, {.blocks = blocks, .block_tokens = block_tokens});
    Scheduler scheduler(model, {.prompt_chunk = 1 + below(20), .drafts = 1 + below(8), .drafting_texts = 8});
    std::vector<std::vector<TokenId>> texts;  // with their prompts
    std::vector<GenerationRequest> requests;
    for (int i = 0; i < 8; ++i) {
      std::vector<TokenId> prompt(kPrompt, 'p');
      prompt[static_cast<std::size_t>(below(kPrompt))] = i;
      const int tokens = 1 + below(longest);
      texts.push_back(prompt);
      for (int made = 0; made < tokens; ++made) texts.back().push_back(next(texts.back()));
      requests.push_back(
          {.prompt = std::move(prompt), .max_tokens = tokens, .ends = {}, .sampling = {.temperature = 0}});
    }
    const auto check = [&](std::vector<GenerationRequest> asked) {
      auto generations = scheduler.Submit(asked);
      ASSERT_TRUE(generations) << generations.error().ToString();
      for (std::size_t i = 0; i < asked.size(); ++i) {
        std::vector<TokenId> text = asked[i].prompt;
        while (auto token = generations->at(i).Next({})) text.push_back(token->token);
        EXPECT_EQ(text, texts[i]) << "seed " << seed << ", text " << i;
      }
    };
    check(requests);
    // What the cache kept of the texts is right, too.
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const int known = requests[i].max_tokens / 2;
      requests[i].prompt.assign(texts[i].begin(), texts[i].begin() + static_cast<std::ptrdiff_t>(kPrompt) + known);
      requests[i].max_tokens -= known;
    }
    check(requests);
    const SchedulerCounters counters = scheduler.counters();
    EXPECT_EQ(counters.used_blocks, 0);
    all.preemptions += counters.preemptions;
    all.preempted_drafts += counters.preempted_drafts;
    all.accepted_tokens += counters.accepted_tokens;
    all.shared_tokens += counters.shared_tokens;
  }
  EXPECT_GT(all.preemptions, 100U);
  EXPECT_GT(all.preempted_drafts, 50U);
  EXPECT_GT(all.accepted_tokens, 1000U);
  EXPECT_GT(all.shared_tokens, 500U);
}

TEST(Scheduler, ABeginningIsComputedOnce) {
  ScriptedModel model(ScriptedModel::Says("hello"));
  Scheduler scheduler(model, {});
  const std::string system(100, 's');
  for (const std::string question : {"a>", "b>", "c>"}) {
    auto generation = SubmitOne(scheduler, Greedy(system + question));
    EXPECT_EQ(ReadAll(*generation), "hello");
  }
  EXPECT_EQ(scheduler.counters().shared_tokens, 2U * 96);
  // A conversation goes on: its answer is known, too.
  auto next = SubmitOne(scheduler, Greedy(system + "c>hello and then>"));
  EXPECT_EQ(ReadAll(*next), "hello");
  EXPECT_EQ(scheduler.counters().shared_tokens, 3U * 96);
}

TEST(Scheduler, ATextThatRepeatsItselfTakesFewSteps) {
  ScriptedModel model(ScriptedModel::Says("one two three one two three one two three"));
  Scheduler scheduler(model, {});
  auto generation = SubmitOne(scheduler, Greedy("one two three: >"));
  EXPECT_EQ(ReadAll(*generation), "one two three one two three one two three");
  EXPECT_EQ(*generation->result(), FinishReason::kEnd);
  const SchedulerCounters counters = scheduler.counters();
  EXPECT_LT(counters.steps, 20U) << "of 42 tokens and the prompt";
  EXPECT_GT(counters.accepted_tokens, 20U);
  EXPECT_LE(counters.accepted_tokens, counters.drafted_tokens);
  EXPECT_EQ(counters.used_blocks, 0);
}

TEST(Scheduler, OnlyTheTextThatFailsEnds) {
  ScriptedModel model(ScriptedModel::Says("hello"));
  model.on_step = [](std::span<const StepPart> parts) -> Status {
    for (const StepPart& part : parts) {
      if (part.tokens[0] == '!') return Fail(Code::kResourceExhausted, "out of memory");
    }
    return {};
  };
  Scheduler scheduler(model, {});
  auto generations = scheduler.Submit({Greedy("a>"), Greedy("!>"), Greedy("c>")});
  EXPECT_EQ(ReadAll(generations->at(0)), "hello");
  EXPECT_EQ(ReadAll(generations->at(1)), "");
  EXPECT_EQ(generations->at(1).result().error().code(), Code::kResourceExhausted);
  EXPECT_EQ(ReadAll(generations->at(2)), "hello");
  EXPECT_EQ(scheduler.counters().used_blocks, 0);
}

/// A model of endless texts that notes whose tokens it computes: the first one of a prompt tells its user.
class UsersTest : public testing::Test {
 protected:
  UsersTest() {
    model_.on_step = [this](std::span<const StepPart> parts) -> Status {
      if (!entered_.try_wait()) entered_.count_down();
      leave_.wait();
      std::map<int, std::size_t> step;
      for (const StepPart& part : parts) {
        if (part.past == 0) users_[part.blocks[0]] = part.tokens[0] - 'A';
        step[users_[part.blocks[0]]] += part.tokens.size();
      }
      steps_.push_back(step);
      return {};
    };
  }
  /// `count` requests of a user, whose prompts have `prompt` tokens.
  static std::vector<GenerationRequest> Of(int user, int count, std::size_t prompt, int max_tokens) {
    std::vector<GenerationRequest> requests;
    for (int i = 0; i < count; ++i) {
      GenerationRequest request =
          Greedy(std::string(1, static_cast<char>('A' + user)) + std::string(prompt - 1, static_cast<char>('a' + i)),
                 max_tokens);
      request.user = user;
      requests.push_back(std::move(request));
    }
    return requests;
  }

  ScriptedModel model_{[](std::span<const TokenId>) -> TokenId { return 'x'; }};
  std::latch entered_{1}, leave_{1};
  std::map<std::int32_t, int> users_;              ///< by the first block of a text
  std::vector<std::map<int, std::size_t>> steps_;  ///< tokens of each user
};

TEST_F(UsersTest, AUserWithOneTextNeedNotWaitForOneWithMany) {
  Scheduler scheduler(model_, {.max_running = 4, .drafts = 0});
  auto many = scheduler.Submit(Of(0, 20, 3, 20));
  entered_.wait();
  auto one = scheduler.Submit(Of(1, 1, 3, 5));
  leave_.count_down();
  ReadAll(one->at(0));
  EXPECT_TRUE(one->at(0).result());
  for (Generation& each : *many) EXPECT_EQ(ReadAll(each).size(), 20U);
  std::size_t first = 0, steps_of_one = 0;
  while (!steps_[first].contains(1)) ++first;
  EXPECT_LE(first, 2U) << "the batch was full";
  for (const auto& step : steps_) {
    steps_of_one += step.contains(1) ? 1 : 0;
    const std::size_t all = (step.contains(0) ? step.at(0) : 0) + (step.contains(1) ? step.at(1) : 0);
    if (step.contains(1) && step.at(1) == 1) EXPECT_LE(all, 4U) << "as many texts as the batch has places";
  }
  EXPECT_EQ(steps_of_one, 5U) << "a token in each step";
}

TEST_F(UsersTest, ATextWithBlocksGoesOnBehindOneThatWaitsForSome) {
  ScriptedModel model([](std::span<const TokenId>) -> TokenId { return 'x'; }, 1000, {.blocks = 14, .block_tokens = 4});
  model.on_step = model_.on_step;
  Scheduler scheduler(model, {.max_running = 3, .prompt_chunk = 1, .mixed_chunk = 1, .slowdown = 0, .drafts = 0});
  std::vector<GenerationRequest> of_first = Of(0, 1, 3, 20);
  of_first.push_back(Of(0, 1, 36, 1).front());
  auto first = scheduler.Submit(std::move(of_first));
  entered_.wait();  // the long prompt has no blocks yet, and pauses when the others come
  auto second = scheduler.Submit(Of(1, 1, 3, 10)), third = scheduler.Submit(Of(2, 1, 3, 20));
  leave_.count_down();
  for (auto* texts : {&*first, &*second, &*third}) {
    for (Generation& each : *texts) ReadAll(each);
  }
  // After the second user's text, there is no room for the long prompt until the first one ends.
  const auto generates = [](const auto& step) { return step.contains(2); };
  const auto begin = std::find_if(steps_.begin(), steps_.end(), generates);
  const auto end = std::find_if(steps_.rbegin(), steps_.rend(), generates).base();
  EXPECT_LE(end - begin, 30) << "it took a token in each step";
  EXPECT_EQ(scheduler.counters().preemptions, 0U);
}

TEST_F(UsersTest, PlacesGoToUsersInTurn) {
  Scheduler scheduler(model_, {.max_running = 1, .drafts = 0});
  auto first = scheduler.Submit(Of(0, 6, 3, 2));
  entered_.wait();
  auto second = scheduler.Submit(Of(1, 6, 3, 2));
  leave_.count_down();
  for (auto* texts : {&*first, &*second}) {
    for (Generation& each : *texts) ReadAll(each);
  }
  std::string order;
  for (const auto& step : steps_) {
    for (const auto& [user, tokens] : step) {
      if (tokens == 3) order += static_cast<char>('A' + user);
    }
  }
  EXPECT_EQ(order, "ABABABABABAB");
}

TEST_F(UsersTest, UsersSharePromptTokensEqually) {
  Scheduler scheduler(model_, {.prompt_chunk = 32, .drafts = 0});
  auto many = scheduler.Submit(Of(0, 7, 100, 1));
  entered_.wait();
  auto one = scheduler.Submit(Of(1, 1, 100, 1));
  leave_.count_down();
  ReadAll(one->at(0));
  for (Generation& each : *many) ReadAll(each);
  EXPECT_EQ(steps_[0][0], 32U);
  EXPECT_EQ(steps_[1][0], 16U);
  EXPECT_EQ(steps_[1][1], 16U);
}

TEST_F(UsersTest, AUserHasAMostOfPlaces) {
  Scheduler scheduler(model_, {.max_admitted = 6, .max_of_user = 3});
  auto three = scheduler.Submit(Of(0, 3, 3, 2));
  EXPECT_EQ(scheduler.Submit(Of(0, 1, 3, 2)).error().code(), Code::kThrottled);
  EXPECT_TRUE(scheduler.Submit(Of(1, 3, 3, 2)));
  leave_.count_down();
  for (Generation& each : *three) ReadAll(each);
  EXPECT_TRUE(scheduler.Submit(Of(0, 3, 3, 2)));
  EXPECT_EQ(scheduler.Submit(Of(2, 4, 3, 2)).error().code(), Code::kInvalidArgument) << "waiting would not help";
}

TEST(Scheduler, EmbedsBesideTexts) {
  ScriptedModel model(ScriptedModel::Says("a text of some length"));
  std::vector<std::size_t> sizes;
  model.on_embed = [&](std::span<const std::span<const TokenId>> texts) -> Status {
    std::size_t tokens = 0;
    for (const auto& text : texts) tokens += text.size();
    sizes.push_back(tokens);
    return {};
  };
  Scheduler scheduler(model, {.embedding_chunk = 10});
  const auto vectors =
      scheduler.Embed({.texts = {Bytes("one"), Bytes("three"), Bytes("a longer text than the chunk"), Bytes("x")}}, {});
  ASSERT_TRUE(vectors) << vectors.error().ToString();
  EXPECT_EQ((*vectors)[1], (std::vector<float>{'t', 'e', 5}));
  EXPECT_EQ(vectors->size(), 4U);
  EXPECT_EQ(sizes, (std::vector<std::size_t>{8, 28, 1})) << "as many texts at a time as the chunk has room for";
  EXPECT_EQ(scheduler.Embed({.texts = {Bytes("fits"), {}}}, {}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(scheduler.Embed({.texts = {std::vector<TokenId>(1001, 1)}}, {}).error().code(), Code::kInvalidArgument);
}

TEST(Scheduler, EmbedsNothingForACallerWhoHasGone) {
  ScriptedModel model(ScriptedModel::Says("x"));
  std::stop_source going;
  std::latch gone(1);
  std::vector<std::string> seen;
  model.on_embed = [&](std::span<const std::span<const TokenId>> texts) -> Status {
    for (const auto& text : texts) seen.emplace_back(text.begin(), text.end());
    if (!going.request_stop()) return {};
    gone.wait();
    return {};
  };
  Scheduler scheduler(model, {.embedding_chunk = 3});
  EXPECT_EQ(scheduler.Embed({.texts = {Bytes("one"), Bytes("two")}}, going.get_token()).error().code(),
            Code::kCancelled);
  EXPECT_EQ(scheduler.Embed({.texts = {Bytes("late")}}, going.get_token()).error().code(), Code::kCancelled);
  gone.count_down();
  EXPECT_TRUE(scheduler.Embed({.texts = {Bytes("other")}}, {}));
  EXPECT_EQ(seen, (std::vector<std::string>{"one", "other"}));
}

TEST(Scheduler, EmbeddingTasksCountForTheirUsersAndHaveTheirTime) {
  ScriptedModel model(ScriptedModel::Says("x"));
  std::latch entered(1), leave(1);
  model.on_embed = [&](auto) -> Status {
    if (!entered.try_wait()) entered.count_down();
    leave.wait();
    return {};
  };
  FakeClock clock;
  Scheduler scheduler(model, {.max_admitted = 2, .max_of_user = 1}, nullptr, clock);
  const TimePoint now = clock.Now();
  std::jthread busy([&] { EXPECT_TRUE(scheduler.Embed({.texts = {Bytes("a")}}, {})); });
  entered.wait();
  EXPECT_EQ(SubmitOne(scheduler, Greedy(">")).error().code(), Code::kThrottled);
  EXPECT_EQ(scheduler.Embed({.texts = {Bytes("a")}}, {}).error().code(), Code::kThrottled);
  GenerationRequest other = Greedy(">");
  other.user = 1;
  auto text = SubmitOne(scheduler, other);
  ASSERT_TRUE(text) << text.error().ToString();
  EXPECT_EQ(scheduler.Embed({.texts = {Bytes("a")}, .user = 2}, {}).error().code(), Code::kThrottled) << "all places";
  leave.count_down();
  busy.join();
  EXPECT_EQ(ReadAll(*text), "x");
  EXPECT_EQ(scheduler.Embed({.texts = {Bytes("a")}, .start_by = now}, {}).error().code(), Code::kThrottled);
  EXPECT_EQ(scheduler.Embed({.texts = {Bytes("a")}, .end_by = now}, {}).error().code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(scheduler.Embed({.texts = {Bytes("a")}}, {}));
}

TEST(Scheduler, LettingGoCancels) {
  ScriptedModel model([](std::span<const TokenId>) -> TokenId { return 'x'; }, 1 << 17);
  Scheduler scheduler(model, {});
  {
    auto endless = SubmitOne(scheduler, Greedy("a", 1 << 16));
    EXPECT_TRUE(endless->Next({}));
  }
  auto next = SubmitOne(scheduler, Greedy("b", 2));
  EXPECT_EQ(ReadAll(*next), "xx") << "the model was free again";
}

TEST(Scheduler, StoppingEndsEveryGeneration) {
  ScriptedModel model([](std::span<const TokenId>) -> TokenId { return 'x'; }, 1 << 17);
  auto scheduler = std::make_unique<Scheduler>(model, Scheduler::Options{});
  auto generations = scheduler->Submit({Greedy("a", 1 << 15), Greedy("b", 1 << 15)});
  EXPECT_TRUE(generations->at(0).Next({}));
  scheduler.reset();
  ReadAll(generations->at(0));
  EXPECT_EQ(generations->at(0).result().error().code(), Code::kCancelled);
  ReadAll(generations->at(1));
  EXPECT_EQ(generations->at(1).result().error().code(), Code::kCancelled);
}

TEST(Scheduler, TextsOfAdaptersShareStepsButNoBlocks) {
  ScriptedModel model(ScriptedModel::Says("base"));
  const auto first = std::make_shared<const Adapter>(), second = std::make_shared<const Adapter>();
  model.next_of_adapter = [&](const Adapter& adapter, std::span<const TokenId> tokens) {
    return ScriptedModel::Says(adapter.id() == first->id() ? "first" : "second")(tokens);
  };
  std::size_t largest = 0;
  bool sorted = true;
  model.on_step = [&](std::span<const StepPart> parts) -> Status {
    largest = std::max(largest, parts.size());
    // Those of one adapter are neighbours.
    sorted = sorted && std::ranges::is_sorted(parts, {}, [](const StepPart& part) {
               return part.adapter != nullptr ? part.adapter->id() : 0;
             });
    return {};
  };
  Scheduler scheduler(model, {});
  const std::string prompt(40, 'p');
  for (int round = 0; round < 2; ++round) {
    std::vector<GenerationRequest> requests;
    for (int i = 0; i < 6; ++i) {
      requests.push_back(Greedy(prompt + ">"));
      if (i % 3 != 0) requests.back().adapter = i % 3 == 1 ? first : second;
    }
    auto generations = scheduler.Submit(std::move(requests)).value();
    for (std::size_t i = 0; i < generations.size(); ++i) {
      EXPECT_EQ(ReadAll(generations[i]), i % 3 == 0 ? "base" : i % 3 == 1 ? "first" : "second");
    }
  }
  EXPECT_EQ(largest, 6U);
  EXPECT_TRUE(sorted);
  EXPECT_GE(scheduler.counters().shared_tokens, 6U * 32) << "in the second round";
}

}  // namespace
}  // namespace millrace::serve
