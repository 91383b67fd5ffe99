#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "millrace/base/hash/random.h"
#include "millrace/eval/evaluate.h"
#include "millrace/eval/scorer.h"
#include "millrace/serve/testing.h"

namespace millrace::eval {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Logits of what follows a token depend on that token and on how many there were. Its cache has the tokens.
class TableModel final : public serve::LanguageModel {
 public:
  explicit TableModel(serve::CacheSize size = {.blocks = 64, .block_tokens = 4}, int context = 64)
      : size_(size), context_(context), cached_(static_cast<std::size_t>(size.tokens())) {}
  int vocab_size() const override { return 258; }
  int context_length() const override { return context_; }
  serve::CacheSize cache() const override { return size_; }
  static float Logit(TokenId before, std::size_t position, TokenId token) {
    return static_cast<float>(
        Random(static_cast<std::uint64_t>(before) * 65536 + position * 512 + static_cast<std::uint64_t>(token))
            .Uniform() *
        6);
  }
  static double Logprob(TokenId before, std::size_t position, TokenId token) {
    double total = 0;
    for (TokenId each = 0; each < 258; ++each) total += std::exp(Logit(before, position, each));
    return Logit(before, position, token) - std::log(total);
  }
  /// The log-likelihood of tokens `first` … of a text.
  static double Logprob(const std::vector<TokenId>& text, std::size_t first) {
    double sum = 0;
    for (std::size_t i = first; i < text.size(); ++i) sum += Logprob(text[i - 1], i - 1, text[i]);
    return sum;
  }
  Result<std::span<const float>> Step(std::span<const serve::StepPart> parts) override {
    ++steps;
    most_parts = std::max(most_parts, parts.size());
    logits_.clear();
    for (const serve::StepPart& part : parts) {
      const std::size_t past = static_cast<std::size_t>(part.past), end = past + part.tokens.size();
      for (std::size_t i = past; i < end; ++i) At(part, i) = part.tokens[i - past];
      for (std::size_t i = end - static_cast<std::size_t>(part.logits); i < end; ++i) {
        for (TokenId token = 0; token < 258; ++token) logits_.push_back(broken ? NAN : Logit(At(part, i), i, token));
      }
    }
    return std::span<const float>(logits_);
  }
  int steps = 0;
  std::size_t most_parts = 0;
  bool broken = false;

 private:
  TokenId& At(const serve::StepPart& part, std::size_t i) {
    const auto in_block = static_cast<std::size_t>(size_.block_tokens);
    return cached_.at(static_cast<std::size_t>(part.blocks[i / in_block]) * in_block + i % in_block);
  }
  const serve::CacheSize size_;
  const int context_;
  std::vector<TokenId> cached_;
  std::vector<float> logits_;
};

std::vector<TokenId> Joined(const ScoreRequest& request) {
  std::vector<TokenId> text = request.context;
  text.insert(text.end(), request.continuation.begin(), request.continuation.end());
  return text;
}

TEST(Scorer, ScoresAreThoseOfEachTextAlone) {
  Random random(3);
  for (const serve::CacheSize size : {serve::CacheSize{64, 4}, serve::CacheSize{20, 4}}) {
    TableModel model(size);
    std::vector<ScoreRequest> requests;
    for (std::size_t group = 0; group < 12; ++group) {
      std::vector<TokenId> context(1 + random.Below(30));
      for (TokenId& token : context) token = static_cast<TokenId>(random.Below(258));
      for (int choice = 0; choice < 4; ++choice) {
        std::vector<TokenId> continuation(1 + random.Below(12));
        for (TokenId& token : continuation) token = static_cast<TokenId>(random.Below(258));
        requests.push_back({context, continuation, group});
      }
    }
    Scorer scorer(model, 5);
    std::size_t told = 0;
    const auto scores = scorer.Run(requests, {}, [&] { ++told; });
    ASSERT_TRUE(scores) << scores.error().ToString();
    EXPECT_EQ(told, requests.size());
    std::size_t tokens = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_NEAR((*scores)[i].logprob, TableModel::Logprob(Joined(requests[i]), requests[i].context.size()), 1e-5)
          << i;
      EXPECT_FALSE((*scores)[i].is_greedy && requests[i].continuation.size() > 2) << "all of them by chance";
      tokens += Joined(requests[i]).size() - 1;
    }
    if (size.blocks == 64) {
      EXPECT_EQ(model.most_parts, 5U);
      EXPECT_LT(scorer.computed_tokens(), tokens * 3 / 4) << "choices share their question";
    }
  }
}

TEST(Scorer, GreedyContinuationsAreRecognised) {
  TableModel model;
  std::vector<TokenId> text{7};
  for (std::size_t i = 0; i < 5; ++i) {
    TokenId best = 0;
    for (TokenId token = 1; token < 258; ++token) {
      if (TableModel::Logit(text.back(), i, token) > TableModel::Logit(text.back(), i, best)) best = token;
    }
    text.push_back(best);
  }
  auto other = text;
  other[3] = (other[3] + 1) % 258;
  const std::vector<ScoreRequest> requests{{{text[0]}, {text.begin() + 1, text.end()}, 0},
                                           {{other[0]}, {other.begin() + 1, other.end()}, 1}};
  const auto scores = Scorer(model, 4).Run(requests, {}).value();
  EXPECT_TRUE(scores[0].is_greedy);
  EXPECT_FALSE(scores[1].is_greedy);
}

TEST(Scorer, LongContextsLoseTheirBeginning) {
  TableModel model({.blocks = 64, .block_tokens = 4}, /*context=*/10);
  std::vector<TokenId> context(30);
  for (std::size_t i = 0; i < context.size(); ++i) context[i] = static_cast<TokenId>(i);
  const std::vector<ScoreRequest> requests{{context, {100, 101, 102}, 0}};
  const auto scores = Scorer(model, 4).Run(requests, {}).value();
  std::vector<TokenId> kept(context.end() - 8, context.end());  // 10 tokens of input are 8 and 100, 101
  kept.insert(kept.end(), {100, 101, 102});
  EXPECT_NEAR(scores[0].logprob, TableModel::Logprob(kept, 8), 1e-5);
}

TEST(Scorer, SaysWhatDoesNotWork) {
  const auto error = [](TableModel& model, std::vector<ScoreRequest> requests, std::stop_token stop = {}) {
    const auto scores = Scorer(model, 4).Run(requests, std::move(stop));
    return scores ? "none" : scores.error().ToString();
  };
  TableModel shorter({.blocks = 64, .block_tokens = 4}, 10), small({.blocks = 2, .block_tokens = 4}), broken;
  broken.broken = true;
  EXPECT_THAT(error(shorter, {{{1}, std::vector<TokenId>(11, 5), 0}}),
              HasSubstr("does not fit the model's context of 10"));
  EXPECT_THAT(error(small, {{{1}, std::vector<TokenId>(11, 5), 0}}), HasSubstr("--kv-cache"));
  EXPECT_THAT(error(broken, {{{1}, {2}, 0}}), HasSubstr("not numbers"));
  std::stop_source stopped;
  stopped.request_stop();
  EXPECT_THAT(error(broken, {{{1}, {2}, 0}}, stopped.get_token()), HasSubstr("stopped"));
}

TEST(Metrics, HaveTheHarnessesErrors) {
  Mean mean;
  for (const double x : {1, 0, 1, 1}) mean.Add(x);
  EXPECT_DOUBLE_EQ(mean.Result("acc").value, 0.75);
  EXPECT_NEAR(mean.Result("acc").standard_error, std::sqrt(0.75 * 0.25 / 3), 1e-12);
  Mean one;
  one.Add(1);
  EXPECT_TRUE(std::isnan(one.Result("acc").standard_error));
  RatioOfSums ratio;
  ratio.Add(-6, 2);
  ratio.Add(-2, 2);
  EXPECT_DOUBLE_EQ(ratio.Perplexity("p").value, std::exp(2));
  // The ratio of each document is off by 2, of a mean of 2: sqrt(2·2² / 1 / 2) / 2.
  EXPECT_NEAR(ratio.Perplexity("p").standard_error, std::exp(2) * 1, 1e-12);
  EXPECT_DOUBLE_EQ(ratio.Bits("b").value, 2 / std::log(2));
}

TEST(Documents, AreTheHarnessesQuestions) {
  const auto hellaswag =
      ParseDocument(Task::kHellaSwag,
                    R"({"activity_label": "Roof", "ctx_a": "A man is [step] here.", "ctx_b": "he GOES [title] up",)"
                    R"( "endings": ["walks [x]  away.", "stays"], "label": "1"})",
                    "x")
          .value();
  EXPECT_EQ(hellaswag.text, "Roof: A man is here. He goes. up");
  EXPECT_THAT(hellaswag.choices, ElementsAre("walks  away.", "stays"));
  EXPECT_EQ(hellaswag.gold, 1U);
  const auto mmlu = ParseDocument(Task::kMmlu,
                                  R"({"question": " What? ", "choices": ["a", "b", "c", "d"], "answer": 2,)"
                                  R"( "subject": "high_school_physics"})",
                                  "x")
                        .value();
  EXPECT_EQ(mmlu.text, "What?\nA. a\nB. b\nC. c\nD. d\nAnswer:");
  EXPECT_EQ(mmlu.gold, 2U);
  auto example = mmlu, other = mmlu;
  other.subject = "anatomy";
  std::vector<Document> documents{mmlu};
  ASSERT_TRUE(AddExamples(documents, {other, example}, 1));
  EXPECT_EQ(documents[0].text,
            "The following are multiple choice questions (with answers) about high school physics.\n\n" + mmlu.text +
                " C\n\n" + mmlu.text);
  documents = {mmlu};
  EXPECT_THAT(AddExamples(documents, {other, example}, 2).error().ToString(),
              HasSubstr("there are 1 examples of the subject"));

  const auto error = [](Task task, std::string_view line) {
    return ParseDocument(task, line, "f.jsonl, line 3").error().ToString();
  };
  EXPECT_THAT(error(Task::kPerplexity, R"({"txt": "a"})"), HasSubstr("f.jsonl, line 3"));
  EXPECT_THAT(error(Task::kChoice, R"({"query": "a", "choices": [], "gold": 0})"), HasSubstr("\"choices\" should be"));
  EXPECT_THAT(error(Task::kChoice, R"({"query": "a", "choices": ["b"], "gold": 1})"), HasSubstr("\"gold\" should be"));
  EXPECT_THAT(error(Task::kMmlu, "{"), HasSubstr("line 3"));
  const auto lines =
      ParseDocuments(Task::kPerplexity, "{\"text\": \"a\"}\n\n{\"text\": \"b\"}\r\n{\"text\": \"c\"}", "f", 2);
  ASSERT_EQ(lines->size(), 2U);
  EXPECT_EQ((*lines)[1].text, "b");
}

class EvaluateTest : public testing::Test {
 protected:
  static std::map<std::string, double> Values(const Evaluation& evaluation) {
    std::map<std::string, double> values;
    for (const Metric& metric : evaluation.metrics) values[metric.name] = metric.value;
    return values;
  }
  serve::ByteTokenizer tokenizer_;
};

TEST_F(EvaluateTest, PerplexityIsOfWindows) {
  TableModel model({.blocks = 64, .block_tokens = 4}, /*context=*/10);
  std::vector<Document> documents(1);
  documents[0].text = "a mill  race, long";  // 18 bytes in two windows
  const auto evaluation = Evaluate(model, tokenizer_, Task::kPerplexity, documents, {}, {}).value();
  auto bytes = serve::Bytes(documents[0].text);
  // The second window has 8 tokens, and before them 3 of the first.
  std::vector<TokenId> first(bytes.begin(), bytes.begin() + 10), second(bytes.begin() + 7, bytes.end());
  first.insert(first.begin(), serve::ByteTokenizer::kBos);
  const double logprob = TableModel::Logprob(first, 1) + TableModel::Logprob(second, 3);
  const auto values = Values(evaluation);
  EXPECT_NEAR(values.at("word_perplexity"), std::exp(-logprob / 4), std::exp(-logprob / 4) * 1e-6);
  EXPECT_NEAR(values.at("byte_perplexity"), std::exp(-logprob / 18), 1e-4);
  EXPECT_NEAR(values.at("bits_per_byte"), -logprob / 18 / std::log(2), 1e-6);
  EXPECT_EQ(evaluation.scored_tokens, 18U);
}

TEST_F(EvaluateTest, ChoicesAreComparedAsTheyAreAndByLength) {
  TableModel model;
  std::vector<Document> documents;
  double right = 0, right_by_length = 0;
  for (int i = 0; i < 40; ++i) {
    Document document{.text = fmt::format("q{}", i), .choices = {"yes", "no, not at all", "so"}, .gold = 1};
    std::vector<double> scores, by_length;
    for (const std::string& choice : document.choices) {
      const auto text = serve::Bytes(document.text + " " + choice);
      scores.push_back(TableModel::Logprob(text, document.text.size()));
      by_length.push_back(scores.back() / static_cast<double>(choice.size()));
    }
    const auto best = [](const std::vector<double>& all) { return std::ranges::max_element(all) - all.begin(); };
    right += best(scores) == 1 ? 1 : 0;
    right_by_length += best(by_length) == 1 ? 1 : 0;
    documents.push_back(std::move(document));
  }
  const auto values = Values(Evaluate(model, tokenizer_, Task::kChoice, documents, {}, {}).value());
  EXPECT_DOUBLE_EQ(values.at("acc"), right / 40);
  EXPECT_DOUBLE_EQ(values.at("acc_norm"), right_by_length / 40);
  EXPECT_GT(right_by_length, right) << "the right choice is the longest";
}

TEST_F(EvaluateTest, MatchComparesWhatTheModelSays) {
  serve::ScriptedModel model(serve::ScriptedModel::Says(" The Water.\nmore"));
  std::vector<Document> documents(3);
  for (Document& document : documents) document.text = "what>";
  documents[0].answers = {"no", "The Water."};
  documents[1].answers = {"the water"};
  documents[2].answers = {"The"};
  const auto exact = Evaluate(model, tokenizer_, Task::kMatch, documents, {}, {}).value();
  EXPECT_NEAR(Values(exact).at("exact_match"), 1 / 3.0, 1e-12);
  EXPECT_EQ(exact.documents[1].said, " The Water.");
  const auto loose =
      Evaluate(model, tokenizer_, Task::kMatch, documents, {.ignore_case = true, .ignore_punctuation = true}, {});
  EXPECT_NEAR(Values(*loose).at("exact_match"), 2 / 3.0, 1e-12);
  const auto cut = Evaluate(model, tokenizer_, Task::kMatch, documents, {.most_tokens = 4}, {}).value();
  EXPECT_EQ(cut.documents[2].said, " The");
  EXPECT_TRUE(cut.documents[2].is_right);
}

}  // namespace
}  // namespace millrace::eval
