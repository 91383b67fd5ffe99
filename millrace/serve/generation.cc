#include "millrace/serve/generation.h"

namespace millrace::serve {

Generation::~Generation() {
  if (state_) Cancel();
}

void Generation::Cancel() { state_->cancelled.store(true, std::memory_order_relaxed); }

std::optional<SampledToken> Generation::Next(std::stop_token stop) { return state_->tokens.Pop(std::move(stop)); }

std::optional<SampledToken> Generation::TryNext() { return state_->tokens.TryPop(); }

bool Generation::has_ended() const {
  MutexLock lock(state_->mutex);
  return state_->has_ended;
}

std::uint64_t Generation::news() const {
  GenerationNews& news = *state_->news;
  MutexLock lock(news.mutex);
  return news.count;
}

void Generation::AwaitNews(std::uint64_t seen, std::stop_token stop) const {
  GenerationNews& news = *state_->news;
  MutexLock lock(news.mutex);
  news.raised.Wait(news.mutex, std::move(stop), [&]() MR_NO_THREAD_SAFETY_ANALYSIS { return news.count != seen; });
}

std::vector<SampledToken> Generation::TakePromptTokens() {
  MutexLock lock(state_->prompt_mutex);
  return std::exchange(state_->prompt_tokens, {});
}

Result<FinishReason> Generation::result() const {
  MutexLock lock(state_->mutex);
  return state_->result;
}

const GenerationRequest& Generation::request() const { return state_->request; }

std::optional<Error> LateError(TimePoint start_by, TimePoint end_by, TimePoint now, bool waits) {
  if (waits && now >= start_by) {
    return Error(Code::kThrottled, "the request waited for its turn as long as this server allows; try again later");
  }
  if (now >= end_by) return Error(Code::kDeadlineExceeded, "the request takes longer than this server allows");
  return std::nullopt;
}

}  // namespace millrace::serve
