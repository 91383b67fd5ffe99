#include "millrace/eval/scorer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace millrace::eval {
namespace {

/// Tokens of a step. Each may have a row of logits: with a vocabulary of 128k, 128 MiB.
constexpr std::size_t kStepTokens = 256;

}  // namespace

Result<std::vector<Score>> Scorer::Run(std::span<const ScoreRequest> requests, std::stop_token stop,
                                       const std::function<void()>& scored) {
  std::vector<Score> scores(requests.size());
  std::list<std::size_t> waiting(requests.size());
  std::iota(waiting.begin(), waiting.end(), std::size_t{0});
  while (!waiting.empty() || !texts_.empty()) {
    if (stop.stop_requested()) return Fail(Code::kCancelled, "the evaluation was stopped");
    MR_TRY(Admit(requests, waiting));
    MR_TRY(Step(scores));
    for (auto text = texts_.begin(); text != texts_.end();) {
      if (text->stored < text->tokens.size()) {
        ++text;
        continue;
      }
      pool_.Release(text->blocks);
      text = texts_.erase(text);
      if (scored) scored();
    }
  }
  return scores;
}

/// Lets texts begin while there is room. One of a group waits for the other, whose blocks it then shares.
Status Scorer::Admit(std::span<const ScoreRequest> requests, std::list<std::size_t>& waiting) {
  for (auto at = waiting.begin(); at != waiting.end() && texts_.size() < most_texts_;) {
    const ScoreRequest& request = requests[*at];
    if (std::ranges::find(texts_, request.group, &ScoredSequence::group) != texts_.end()) {
      ++at;
      continue;
    }
    if (!MR_TRY(Begin(request, *at))) return {};
    at = waiting.erase(at);
  }
  return {};
}

/// Returns whether the cache has room for the text.
Result<bool> Scorer::Begin(const ScoreRequest& request, std::size_t index) {
  const auto context = static_cast<std::size_t>(model_.context_length());
  if (request.continuation.size() > context) {
    return Fail(Code::kInvalidArgument,
                "a continuation of {} tokens does not fit the model's context of {}; shorten the document, or take a "
                "model of longer context",
                request.continuation.size(), context);
  }
  ScoredSequence text{
      .request = index, .group = request.group, .tokens = {}, .last = request.continuation.back(), .blocks = {}};
  const std::size_t most = context + 1 - request.continuation.size();
  const std::size_t skipped = request.context.size() - std::min(request.context.size(), most);
  text.tokens.assign(request.context.begin() + static_cast<std::ptrdiff_t>(skipped), request.context.end());
  text.tokens.insert(text.tokens.end(), request.continuation.begin(), request.continuation.end() - 1);
  text.first_scored = text.tokens.size() - request.continuation.size();
  const auto in_block = static_cast<std::size_t>(pool_.block_tokens());
  const std::size_t wanted = (text.tokens.size() + in_block - 1) / in_block;
  // The model computes a shared beginning anew only where its logits count.
  text.blocks = pool_.Share(std::span(text.tokens).first(std::min(text.first_scored + 1, text.tokens.size())));
  text.published = text.blocks.size();
  text.stored = text.blocks.size() * in_block;
  while (text.blocks.size() < wanted) {
    const std::int32_t block = pool_.TakeBlock();
    if (block < 0) {
      pool_.Release(text.blocks);
      if (!texts_.empty()) return false;
      return Fail(Code::kResourceExhausted,
                  "a text of {} tokens does not fit the KV cache of {}; give more with --kv-cache", text.tokens.size(),
                  model_.cache().tokens());
    }
    text.blocks.push_back(block);
  }
  texts_.push_back(std::move(text));
  return true;
}

/// Computes the next tokens of the texts, the ones that began first before others.
Status Scorer::Step(std::vector<Score>& scores) {
  std::vector<serve::StepPart> parts;
  std::size_t left = kStepTokens;
  for (const ScoredSequence& text : texts_) {
    const std::size_t count = std::min(text.tokens.size() - text.stored, left);
    if (count == 0) break;
    const std::size_t end = text.stored + count;
    parts.push_back({.tokens = std::span(text.tokens).subspan(text.stored, count),
                     .past = static_cast<int>(text.stored),
                     .blocks = text.blocks,
                     .logits = static_cast<int>(end - std::clamp(text.first_scored, text.stored, end))});
    left -= count;
  }
  const auto logits = MR_TRY(model_.Step(parts));
  const auto width = static_cast<std::size_t>(model_.vocab_size());
  const auto in_block = static_cast<std::size_t>(pool_.block_tokens());
  std::size_t row = 0;
  auto text = texts_.begin();
  for (const serve::StepPart& part : parts) {
    text->stored += part.tokens.size();
    computed_tokens_ += part.tokens.size();
    for (int i = part.logits; i > 0; --i, ++row) {
      MR_TRY(AddScore(*text, text->stored - static_cast<std::size_t>(i), logits.subspan(row * width, width),
                      scores[text->request]));
    }
    for (; (text->published + 1) * in_block <= text->stored; ++text->published) {
      pool_.Publish(text->tokens, std::span(text->blocks).first(text->published + 1));
    }
    ++text;
  }
  return {};
}

/// Adds the token behind `position` to a score. `logits`: of what follows there.
Status Scorer::AddScore(const ScoredSequence& text, std::size_t position, std::span<const float> logits,
                        Score& score) const {
  const TokenId token = position + 1 < text.tokens.size() ? text.tokens[position + 1] : text.last;
  const float most = *std::ranges::max_element(logits), mine = logits[static_cast<std::size_t>(token)];
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit) - most);
  if (!std::isfinite(total)) return Fail(Code::kInternal, "the model's scores are not numbers");
  score.logprob += static_cast<double>(mine) - most - std::log(total);
  score.is_greedy = score.is_greedy && mine == most;
  return {};
}

}  // namespace millrace::eval
