#include "millrace/eval/evaluate.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "millrace/eval/scorer.h"
#include "millrace/jinja/python/text.h"
#include "millrace/serve/scheduler.h"
#include "millrace/serve/text_stream.h"
#include "millrace/tokenizer/unicode/unicode.h"

namespace millrace::eval {
namespace {

namespace python = jinja;

/// Returns how many parts white space cuts a text into, as len(re.split(r"\s+", text)) in Python.
std::size_t CountWords(std::string_view text) {
  std::size_t words = 1;
  bool in_space = false;
  for (const char* at = text.data(); at != text.data() + text.size();) {
    const auto character = tokenizer::DecodeUtf8(at, text.data() + text.size());
    const bool space = tokenizer::IsWhiteSpace(character.code) || (character.code >= 0x1c && character.code <= 0x1f);
    if (space && !in_space) ++words;
    in_space = space;
    at += character.length;
  }
  return words;
}

class Evaluator {
 public:
  Evaluator(serve::LanguageModel& model, const tokenizer::Tokenizer& tokenizer, const EvaluateOptions& options,
            std::stop_token stop, const std::function<void(std::size_t, std::size_t)>& done)
      : model_(model), tokenizer_(tokenizer), options_(options), stop_(std::move(stop)), done_(done) {}

  Result<Evaluation> Perplexity(const std::vector<Document>& documents);
  Result<Evaluation> Choices(const std::vector<Document>& documents);
  Result<Evaluation> Match(const std::vector<Document>& documents);

 private:
  Result<std::vector<TokenId>> Tokens(std::string_view text, bool add_bos) const;
  TokenId PrefixToken() const;
  Result<ScoreRequest> Pair(std::string_view context, std::string_view continuation) const;
  Result<std::vector<Score>> Scores(const std::vector<ScoreRequest>& requests, Evaluation& evaluation);
  Result<std::string> TextOf(serve::Generation& generation) const;
  std::string Compared(std::string_view text) const;

  serve::LanguageModel& model_;
  const tokenizer::Tokenizer& tokenizer_;
  const EvaluateOptions& options_;
  const std::stop_token stop_;
  const std::function<void(std::size_t, std::size_t)>& done_;
};

Result<std::vector<TokenId>> Evaluator::Tokens(std::string_view text, bool add_bos) const {
  std::vector<TokenId> tokens;
  if (add_bos && tokenizer_.bos() != tokenizer::kNoToken) tokens.push_back(tokenizer_.bos());
  MR_TRY(tokenizer_.Encode(text, tokens));
  return tokens;
}

/// The token before a text that has none before it.
TokenId Evaluator::PrefixToken() const {
  if (tokenizer_.bos() != tokenizer::kNoToken) return tokenizer_.bos();
  return tokenizer_.eos() != tokenizer::kNoToken ? tokenizer_.eos() : 0;
}

/// Cuts the tokens of both texts together where those of the context end. White space at the context's end belongs to
/// the continuation.
Result<ScoreRequest> Evaluator::Pair(std::string_view context, std::string_view continuation) const {
  const std::string_view kept = python::Strip(context, python::Ends::kRight);
  const std::string rest = std::string(context.substr(kept.size())) + std::string(continuation);
  ScoreRequest request;
  if (kept.empty()) {
    request.context = {PrefixToken()};
    request.continuation = MR_TRY(Tokens(rest, /*add_bos=*/false));
  } else {
    request.context = MR_TRY(Tokens(kept, options_.add_bos));
    const auto whole = MR_TRY(Tokens(std::string(kept) + rest, options_.add_bos));
    const std::size_t cut = std::min(request.context.size(), whole.size());
    request.continuation.assign(whole.begin() + static_cast<std::ptrdiff_t>(cut), whole.end());
  }
  if (request.continuation.empty()) {
    return Fail(Code::kInvalidArgument,
                "\"{}\" adds no token to the text before it; give the document an answer with more text", continuation);
  }
  return request;
}

Result<std::vector<Score>> Evaluator::Scores(const std::vector<ScoreRequest>& requests, Evaluation& evaluation) {
  Scorer scorer(model_, options_.most_texts);
  std::size_t scored = 0;
  auto scores = MR_TRY(scorer.Run(requests, stop_, [&] {
    if (done_) done_(++scored, requests.size());
  }));
  for (const ScoreRequest& request : requests) evaluation.scored_tokens += request.continuation.size();
  evaluation.computed_tokens = scorer.computed_tokens();
  return scores;
}

Result<Evaluation> Evaluator::Perplexity(const std::vector<Document>& documents) {
  std::vector<ScoreRequest> requests;
  std::vector<std::size_t> tokens_of(documents.size());
  const auto window = static_cast<std::size_t>(model_.context_length());
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const auto tokens = MR_TRY(Tokens(documents[i].text, options_.add_bos));
    tokens_of[i] = tokens.size();
    for (std::size_t begin = 0; begin < tokens.size(); begin += window) {
      const std::size_t end = std::min(begin + window, tokens.size());
      ScoreRequest request{.context = {}, .continuation = {}, .group = requests.size()};
      request.continuation.assign(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                  tokens.begin() + static_cast<std::ptrdiff_t>(end));
      if (begin == 0) {
        request.context = {PrefixToken()};
      } else {  // as many tokens before as fit
        request.context.assign(tokens.begin() + static_cast<std::ptrdiff_t>(end - window - 1),
                               tokens.begin() + static_cast<std::ptrdiff_t>(begin));
      }
      requests.push_back(std::move(request));
    }
  }
  Evaluation evaluation;
  const auto scores = MR_TRY(Scores(requests, evaluation));
  RatioOfSums words, bytes, tokens;
  auto score = scores.begin();
  for (std::size_t i = 0; i < documents.size(); ++i) {
    double logprob = 0;
    for (std::size_t begin = 0; begin < tokens_of[i]; begin += window) logprob += (score++)->logprob;
    words.Add(logprob, static_cast<double>(CountWords(documents[i].text)));
    bytes.Add(logprob, static_cast<double>(documents[i].text.size()));
    tokens.Add(logprob, static_cast<double>(tokens_of[i]));
    evaluation.documents.push_back({.logprobs = {logprob}, .said = {}});
  }
  evaluation.metrics = {words.Perplexity("word_perplexity"), bytes.Perplexity("byte_perplexity"),
                        bytes.Bits("bits_per_byte"), tokens.Perplexity("token_perplexity")};
  return evaluation;
}

Result<Evaluation> Evaluator::Choices(const std::vector<Document>& documents) {
  std::vector<ScoreRequest> requests;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    for (const std::string& choice : documents[i].choices) {
      auto request = MR_TRY(Pair(documents[i].text, " " + choice));
      request.group = i;
      requests.push_back(std::move(request));
    }
  }
  Evaluation evaluation;
  const auto scores = MR_TRY(Scores(requests, evaluation));
  Mean right, right_by_length;
  std::map<std::string, Mean> subjects;
  auto score = scores.begin();
  for (const Document& document : documents) {
    DocumentResult result{.logprobs = {}, .said = {}};
    std::vector<double> by_length;
    for (const std::string& choice : document.choices) {
      result.logprobs.push_back((score++)->logprob);
      by_length.push_back(result.logprobs.back() / static_cast<double>(python::CountCharacters(choice)));
    }
    const auto likeliest = [&](const std::vector<double>& numbers) {
      return static_cast<std::size_t>(std::ranges::max_element(numbers) - numbers.begin());
    };
    result.is_right = likeliest(result.logprobs) == document.gold;
    right.Add(result.is_right ? 1 : 0);
    right_by_length.Add(likeliest(by_length) == document.gold ? 1 : 0);
    if (!document.subject.empty()) subjects[document.subject].Add(result.is_right ? 1 : 0);
    evaluation.documents.push_back(std::move(result));
  }
  evaluation.metrics = {right.Result("acc"), right_by_length.Result("acc_norm")};
  for (const auto& [subject, mean] : subjects) evaluation.subjects[subject] = mean.Result("acc");
  return evaluation;
}

Result<std::string> Evaluator::TextOf(serve::Generation& generation) const {
  serve::Detokenizer detokenizer(tokenizer_, generation.request().prompt);
  serve::StopMatcher matcher(options_.until);
  std::string text;
  while (!matcher.stopped()) {
    const auto token = generation.Next(stop_);
    if (!token) break;
    text += matcher.Add(MR_TRY(detokenizer.Add(token->token)));
  }
  if (stop_.stop_requested()) return Fail(Code::kCancelled, "the evaluation was stopped");
  if (matcher.stopped()) return text;
  MR_TRY(generation.result());
  text += matcher.Add(MR_TRY(detokenizer.Finish()));
  return text + matcher.Finish();
}

/// Returns a text as it is compared.
std::string Evaluator::Compared(std::string_view text) const {
  std::string compared;
  for (const char c : python::Strip(text, python::Ends::kBoth)) {
    const auto byte = static_cast<unsigned char>(c);
    if (options_.ignore_punctuation && byte < 0x80 && std::ispunct(byte) != 0) continue;
    compared += options_.ignore_case && byte < 0x80 ? static_cast<char>(std::tolower(byte)) : c;
  }
  return compared;
}

Result<Evaluation> Evaluator::Match(const std::vector<Document>& documents) {
  Evaluation evaluation;
  Mean right;
  serve::Scheduler scheduler(model_, {.max_admitted = static_cast<int>(2 * options_.most_texts),
                                      .max_running = static_cast<int>(options_.most_texts)});
  // As many are under way as may be admitted.
  std::deque<serve::Generation> under_way;
  std::size_t next = 0;
  const auto begin_one = [&]() -> Status {
    std::vector<serve::GenerationRequest> requests(1);
    requests[0].prompt = MR_TRY(Tokens(documents[next].text, options_.add_bos));
    if (requests[0].prompt.empty()) requests[0].prompt = {PrefixToken()};
    requests[0].ends = options_.ends;
    requests[0].sampling.temperature = 0;
    // A long prompt loses its beginning, so that a whole answer fits, or one of half of a small context.
    std::vector<TokenId>& prompt = requests[0].prompt;
    const int context = model_.context_length();
    const auto kept =
        static_cast<std::size_t>(context - (options_.most_tokens < context ? options_.most_tokens : context / 2));
    if (prompt.size() > kept) prompt.erase(prompt.begin(), prompt.end() - static_cast<std::ptrdiff_t>(kept));
    requests[0].max_tokens = std::min(context - static_cast<int>(prompt.size()), options_.most_tokens);
    auto begun = MR_TRY(scheduler.Submit(std::move(requests)));
    under_way.push_back(std::move(begun[0]));
    ++next;
    return {};
  };
  for (std::size_t i = 0; i < documents.size(); ++i) {
    while (next < documents.size() && under_way.size() < options_.most_texts) MR_TRY(begin_one());
    DocumentResult result;
    result.said = MR_TRY(TextOf(under_way.front()));
    under_way.pop_front();
    const std::string said = Compared(result.said);
    result.is_right =
        std::ranges::any_of(documents[i].answers, [&](const std::string& answer) { return Compared(answer) == said; });
    right.Add(result.is_right ? 1 : 0);
    evaluation.documents.push_back(std::move(result));
    if (done_) done_(i + 1, documents.size());
  }
  evaluation.metrics = {right.Result("exact_match")};
  evaluation.computed_tokens = scheduler.counters().tokens;
  return evaluation;
}

}  // namespace

Result<Evaluation> Evaluate(serve::LanguageModel& model, const tokenizer::Tokenizer& tokenizer, Task task,
                            const std::vector<Document>& documents, const EvaluateOptions& options,
                            std::stop_token stop, const std::function<void(std::size_t done, std::size_t all)>& done) {
  if (documents.empty()) return Fail(Code::kInvalidArgument, "there are no documents; give at least one");
  Evaluator evaluator(model, tokenizer, options, std::move(stop), done);
  switch (task) {
    case Task::kPerplexity:
      return evaluator.Perplexity(documents);
    case Task::kMatch:
      return evaluator.Match(documents);
    case Task::kChoice:
    case Task::kHellaSwag:
    case Task::kMmlu:
      break;
  }
  return evaluator.Choices(documents);
}

}  // namespace millrace::eval
