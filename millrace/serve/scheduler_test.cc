#include "millrace/serve/scheduler.h"

#include <gtest/gtest.h>

#include <latch>

#include "millrace/serve/testing.h"

namespace millrace::serve {
namespace {

GenerationRequest Greedy(std::string_view prompt, int max_tokens = 50) {
  return {
      .prompt = Bytes(prompt), .max_tokens = max_tokens, .end = ByteTokenizer::kEos, .sampling = {.temperature = 0}};
}

std::string ReadAll(Generation& generation) {
  std::string text;
  while (auto token = generation.Next({})) text.push_back(static_cast<char>(*token));
  return text;
}

Result<Generation> SubmitOne(Scheduler& scheduler, GenerationRequest request) {
  std::vector<GenerationRequest> requests;
  requests.push_back(std::move(request));
  auto generations = MR_TRY(scheduler.Submit(std::move(requests)));
  return std::move(generations.front());
}

TEST(Scheduler, MakesTextsInOrder) {
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

TEST(Scheduler, LettingGoCancels) {
  ScriptedModel model([](std::span<const TokenId>) -> TokenId { return 'x'; }, 1 << 30);
  Scheduler scheduler(model, {});
  {
    auto endless = SubmitOne(scheduler, Greedy("a", 1 << 20));
    EXPECT_TRUE(endless->Next({}));
  }
  auto next = SubmitOne(scheduler, Greedy("b", 2));
  EXPECT_EQ(ReadAll(*next), "xx") << "the model was free again";
}

TEST(Scheduler, StoppingEndsEveryGeneration) {
  ScriptedModel model([](std::span<const TokenId>) -> TokenId { return 'x'; }, 1 << 30);
  auto scheduler = std::make_unique<Scheduler>(model, Scheduler::Options{});
  auto generations = scheduler->Submit({Greedy("a", 1 << 20), Greedy("b", 5)});
  EXPECT_TRUE(generations->at(0).Next({}));
  scheduler.reset();
  ReadAll(generations->at(0));
  EXPECT_EQ(generations->at(0).result().error().code(), Code::kCancelled);
  EXPECT_EQ(ReadAll(generations->at(1)), "");
  EXPECT_EQ(generations->at(1).result().error().code(), Code::kCancelled);
}

}  // namespace
}  // namespace millrace::serve
