#include "millrace/serve/sampler.h"

#include <algorithm>
#include <cmath>

#include "millrace/base/hash/random.h"

namespace millrace::serve {
namespace {

/// Likelier tokens first; of equals the one with the lower id, so that no order is left to chance.
auto Likelier(std::span<const float> logits) {
  return [logits](TokenId a, TokenId b) {
    float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
}

/// Returns the token with the largest logit, of equals the first one; kNoToken if no logit is above -infinity. Is one
/// pass, because a step draws a token of each of its texts.
TokenId Likeliest(std::span<const float> logits) {
  TokenId best = tokenizer::kNoToken;
  float most = -INFINITY;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > most)) continue;
    most = logits[i];
    best = static_cast<TokenId>(i);
  }
  return best;
}

}  // namespace

Sampler::Sampler(SamplingOptions options, std::span<const TokenId> prompt, std::shared_ptr<SamplingMemory> memory)
    : options_(std::move(options)), memory_(memory ? std::move(memory) : std::make_shared<SamplingMemory>()) {
  if (options_.repetition_penalty != 1) seen_.insert(prompt.begin(), prompt.end());
  if (options_.constraint) state_ = options_.constraint->start();
}

SampledToken Sampler::Sample(std::span<const float> logits) {
  SampledToken sampled{.token = Draw(Adjust(logits))};
  if (sampled.token == tokenizer::kNoToken) return sampled;
  ++made_;
  if (options_.constraint) state_ = options_.constraint->Accept(state_, sampled.token);
  if (options_.repetition_penalty != 1) seen_.insert(sampled.token);
  if (options_.presence_penalty != 0 || options_.frequency_penalty != 0) ++frequency_[sampled.token];
  if (options_.logprobs) TellLogprobs(logits, sampled);
  return sampled;
}

/// Returns the logits themselves if nothing changes them.
std::span<const float> Sampler::Adjust(std::span<const float> logits) {
  const bool too_short = made_ < options_.min_tokens;
  const bool changes =
      too_short || options_.constraint || !options_.bias.empty() || !seen_.empty() || !frequency_.empty();
  if (!changes) return logits;
  std::vector<float>& adjusted = memory_->adjusted;
  adjusted.assign(logits.begin(), logits.end());
  const auto logit_of = [&adjusted](TokenId token) {
    const auto place = static_cast<std::size_t>(token);
    return token >= 0 && place < adjusted.size() ? &adjusted[place] : nullptr;
  };
  for (const auto& [token, bias] : options_.bias) {
    if (float* logit = logit_of(token)) *logit += static_cast<float>(bias);
  }
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  for (const TokenId token : seen_) {
    if (float* logit = logit_of(token)) *logit = *logit > 0 ? *logit / penalty : *logit * penalty;
  }
  for (const auto& [token, count] : frequency_) {
    if (float* logit = logit_of(token))
      *logit -= static_cast<float>(options_.presence_penalty + count * options_.frequency_penalty);
  }
  if (options_.constraint) stuck_ = !options_.constraint->Mask(state_, options_.ends, adjusted);
  if (!too_short) return adjusted;
  for (const TokenId end : options_.ends) {
    if (float* logit = logit_of(end)) *logit = -INFINITY;
  }
  stuck_ = stuck_ || (options_.constraint && Likeliest(adjusted) == tokenizer::kNoToken);
  return adjusted;
}

TokenId Sampler::Draw(std::span<const float> logits) {
  const TokenId best = Likeliest(logits);
  if (options_.temperature <= 0 || best == tokenizer::kNoToken) return best;
  const double most = logits[static_cast<std::size_t>(best)];
  if (std::isinf(most)) return best;

  TokenWeights& weights = memory_->weights;
  double total = weights.Compute(logits, most, options_.temperature);
  const bool has_top_k = options_.top_k > 0 && static_cast<std::size_t>(options_.top_k) < logits.size();

  // Tokens that will certainly go are left out at once.
  double least = std::max(options_.min_p, 0.0);
  if (has_top_k) {
    least = std::max(least, weights.LeastOfTop(static_cast<std::size_t>(options_.top_k)));
  } else if (options_.top_p < 1) {
    // All tokens below this weight have half of what top_p leaves away, and half of it is a margin for rounding.
    least = std::max(least, (1 - options_.top_p) * total / (2 * static_cast<double>(logits.size())));
  }
  memory_->candidates.clear();
  weights.Collect(least, memory_->candidates);
  if (has_top_k) {
    KeepTopK(logits);
    if (options_.top_p < 1) total = TotalOfCandidates();
  }
  if (options_.top_p < 1) KeepTopP(logits, total);
  if (options_.typical_p < 1) KeepTypical();
  return Race();
}

/// Draws a candidate by its weight: each arrives after an exponential time with its weight as the rate, and the first
/// one wins (the Gumbel-max trick). A time depends on seed, draw and token only, not on the other candidates.
TokenId Sampler::Race() {
  const TokenWeights& weights = memory_->weights;
  const std::uint64_t draw = Mix64(options_.seed ^ Mix64(++draws_));
  TokenId first = tokenizer::kNoToken;
  double soonest = INFINITY;
  for (const TokenId id : memory_->candidates) {
    const std::uint64_t bits = Mix64(draw + static_cast<std::uint64_t>(id));
    const double uniform = (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;  // within (0, 1)
    // The logarithm's size is at least this, and most tokens come too late with it, too.
    if (1 - uniform > soonest * weights[id]) continue;
    const double time = -std::log(uniform) / weights[id];
    if (time < soonest) {
      soonest = time;
      first = id;
    }
  }
  return first;
}

double Sampler::TotalOfCandidates() const {
  double total = 0;
  for (const TokenId id : memory_->candidates) total += memory_->weights[id];
  return total;
}

void Sampler::KeepTopK(std::span<const float> logits) {
  std::vector<TokenId>& candidates = memory_->candidates;
  auto k = static_cast<std::size_t>(options_.top_k);
  if (k >= candidates.size()) return;
  std::nth_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(k), candidates.end(),
                   Likelier(logits));
  candidates.resize(k);
  std::sort(candidates.begin(), candidates.end());
}

/// A few tokens usually have nearly all of the probability: sorts as many as it takes, not the whole vocabulary.
void Sampler::KeepTopP(std::span<const float> logits, double total) {
  const TokenWeights& weights = memory_->weights;
  std::vector<TokenId>& candidates = memory_->candidates;
  double sum = 0;
  std::size_t kept = 0;
  for (std::size_t sorted = 64; kept < candidates.size(); sorted *= 8) {
    std::size_t end = std::min(sorted, candidates.size());
    std::partial_sort(candidates.begin() + static_cast<std::ptrdiff_t>(kept),
                      candidates.begin() + static_cast<std::ptrdiff_t>(end), candidates.end(), Likelier(logits));
    while (kept < end) {
      sum += weights[candidates[kept++]];
      if (sum >= options_.top_p * total) return candidates.resize(kept);
    }
  }
}

void Sampler::KeepTypical() {
  const TokenWeights& weights = memory_->weights;
  std::vector<TokenId>& candidates = memory_->candidates;
  struct Surprise {
    TokenId token;
    double probability, distance;  ///< of -log(probability) from its expectation
  };
  const double total = TotalOfCandidates();
  double expected = 0;
  std::vector<Surprise> surprises;
  for (TokenId id : candidates) {
    const double probability = weights[id] / total;
    const double surprise = probability > 0 ? -std::log(probability) : INFINITY;
    if (probability > 0) expected += probability * surprise;
    surprises.push_back({id, probability, surprise});
  }
  for (Surprise& each : surprises) each.distance = std::abs(each.distance - expected);
  std::sort(surprises.begin(), surprises.end(), [](const Surprise& a, const Surprise& b) {
    return a.distance != b.distance ? a.distance < b.distance : a.token < b.token;
  });
  candidates.clear();
  double sum = 0;
  for (const Surprise& each : surprises) {
    candidates.push_back(each.token);
    sum += each.probability;
    if (sum >= options_.typical_p) break;
  }
  std::sort(candidates.begin(), candidates.end());
}

SampledToken Sampler::WithLogprobs(std::span<const float> logits, TokenId token) const {
  SampledToken told{.token = token};
  TellLogprobs(logits, told);
  return told;
}

void Sampler::TellLogprobs(std::span<const float> logits, SampledToken& sampled) const {
  TokenWeights& weights = memory_->weights;
  std::vector<TokenId>& candidates = memory_->candidates;
  double most = -INFINITY;
  for (const float logit : logits) most = logit > most ? logit : most;
  const double norm = most + std::log(weights.Compute(logits, most, 1));
  const auto logprob = [&](TokenId id) { return logits[static_cast<std::size_t>(id)] - norm; };
  sampled.logprob = logprob(sampled.token);
  if (*options_.logprobs == 0) return;
  const double least = weights.LeastOfTop(static_cast<std::size_t>(*options_.logprobs));
  candidates.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (logits[i] > -INFINITY && weights[id] >= least) candidates.push_back(id);
  }
  const std::size_t count = std::min(candidates.size(), static_cast<std::size_t>(*options_.logprobs));
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(count), candidates.end(),
                    Likelier(logits));
  for (std::size_t i = 0; i < count; ++i) sampled.likeliest.push_back({candidates[i], logprob(candidates[i])});
}

}  // namespace millrace::serve
