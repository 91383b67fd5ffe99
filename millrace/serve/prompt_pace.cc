#include "millrace/serve/prompt_pace.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace millrace::serve {
namespace {

constexpr std::size_t kEnough = 5;  // steps for a median that single ones do not change

}  // namespace

std::optional<PromptPace::Step> PromptPace::Recent::Median() const {
  const std::size_t count = std::min(count_, steps_.size());
  if (count < kEnough) return std::nullopt;
  const auto median = [&](double Step::* figure) {
    std::vector<double> sorted;
    for (std::size_t i = 0; i < count; ++i) sorted.push_back(steps_[i].*figure);
    std::ranges::nth_element(sorted, sorted.begin() + static_cast<std::ptrdiff_t>(count / 2));
    return sorted[count / 2];
  };
  return Step{.tokens = median(&Step::tokens), .seconds = median(&Step::seconds)};
}

void PromptPace::AddStep(std::size_t waiting, std::size_t prompt, Duration took) {
  if (waiting == 0) return;
  waiting_[steps_++ % waiting_.size()] = waiting;
  (prompt == 0 ? plain_ : mixed_).Add({.tokens = static_cast<double>(waiting + prompt), .seconds = SecondsOf(took)});
}

double PromptPace::Usual() const {
  std::vector<std::size_t> sorted(waiting_.begin(),
                                  waiting_.begin() + static_cast<std::ptrdiff_t>(std::min(steps_, waiting_.size())));
  std::ranges::sort(sorted);
  const std::size_t all = std::accumulate(sorted.begin(), sorted.end(), std::size_t{0});
  std::size_t tokens = 0;
  for (const std::size_t waiting : sorted) {
    tokens += waiting;
    if (2 * tokens >= all) return static_cast<double>(waiting);
  }
  return 0;
}

std::size_t PromptPace::Tokens(std::size_t waiting) const {
  const auto plain = plain_.Median(), mixed = mixed_.Median();
  if (options_.slowdown == 0 || !plain || !mixed || mixed->tokens <= plain->tokens) return options_.first;
  const double of_token = (mixed->seconds - plain->seconds) / (mixed->tokens - plain->tokens);
  if (of_token <= 0) return options_.most;  // a step's time is that of reading the weights
  const auto alone = [&](double tokens) {
    return std::max(plain->seconds + of_token * (tokens - plain->tokens), of_token);
  };
  const double unnoticed = std::chrono::duration<double>(options_.unnoticed).count();
  const double allowed = std::max(options_.slowdown * alone(Usual()), unnoticed);
  const double tokens =
      std::min((allowed - alone(static_cast<double>(waiting))) / of_token, static_cast<double>(options_.most));
  return std::clamp(static_cast<std::size_t>(std::max(tokens, 0.0)), options_.least, options_.most);
}

}  // namespace millrace::serve
