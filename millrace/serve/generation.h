// Texts that are being generated, as their consumers and the scheduler see them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/sync.h"
#include "millrace/serve/language_model.h"
#include "millrace/serve/sampler.h"

namespace millrace::serve {

struct GenerationRequest {
  std::vector<TokenId> prompt;  ///< at least one token
  int max_tokens = 16;          ///< prompt and these tokens must fit the model's context; 0: only the prompt is read
  std::vector<TokenId> ends;    ///< tokens that end the text; Next() does not return them
  SamplingOptions sampling;
  bool prompt_logprobs = false;                 ///< tell the prompt's too, as many as `sampling.logprobs` says
  int user = 0;                                 ///< whose it is: users get equal parts of the model
  TimePoint start_by = TimePoint::max();        ///< the text ends with kThrottled if it still waits then
  TimePoint end_by = TimePoint::max();          ///< the text ends with kDeadlineExceeded if it has not ended by then
  std::shared_ptr<const Adapter> adapter = {};  ///< null: the model's own weights
};

/// kEnd: an end token. kLength: max_tokens were generated, or the text reached the limits of its constraint.
enum class FinishReason { kEnd, kLength };

/// Counts what happens to the texts of one request, so that one thread can wait for all of them.
struct GenerationNews {
  Mutex mutex;
  CondVar raised;
  std::uint64_t count MR_GUARDED_BY(mutex) = 0;

  void Raise() {
    MutexLock lock(mutex);
    ++count;
    lock.Unlock();
    raised.NotifyAll();
  }
};

/// One text between its consumer and the scheduler's thread, which adds the tokens. Thread-safe.
struct GenerationState {
  GenerationState(GenerationRequest r, std::shared_ptr<GenerationNews> n)
      : request(std::move(r)), news(std::move(n)), tokens(static_cast<std::size_t>(std::max(request.max_tokens, 1))) {}

  void AddToken(SampledToken token) {
    tokens.Push(std::move(token));
    news->Raise();
  }
  void End(Result<FinishReason> how) {
    {
      MutexLock lock(mutex);
      result = std::move(how);
      has_ended = true;
    }
    tokens.Close();
    news->Raise();
  }

  const GenerationRequest request;
  const std::shared_ptr<GenerationNews> news;
  std::atomic<bool> cancelled{false};
  std::atomic<std::int64_t> cached_tokens{0};  ///< of the prompt, that the cache had
  Mutex prompt_mutex;
  std::vector<SampledToken> prompt_tokens MR_GUARDED_BY(prompt_mutex);  ///< from the second one
  Channel<SampledToken> tokens;  ///< has room for all: a slow consumer does not hold the model up
  Mutex mutex;
  bool has_ended MR_GUARDED_BY(mutex) = false;
  Result<FinishReason> result MR_GUARDED_BY(mutex) = Fail(Code::kCancelled, "the generation has not ended");
};

/// The consumer's handle of one text that is being generated. One owner, one thread. The destructor cancels it.
class Generation {
 public:
  explicit Generation(std::shared_ptr<GenerationState> state) : state_(std::move(state)) {}
  Generation(Generation&&) noexcept = default;
  Generation& operator=(Generation&&) = delete;
  ~Generation();

  /// Returns the next token. Blocks. Returns nothing at the end, or after `stop` has fired.
  std::optional<SampledToken> Next(std::stop_token stop);
  /// Returns the next token if there is one already. Does not block.
  std::optional<SampledToken> TryNext();
  /// Returns whether the text has ended. Tokens that TryNext() has not returned are still there.
  bool has_ended() const;
  /// Returns a number that grows when any text of the same Submit() gets a token or ends.
  std::uint64_t news() const;
  /// Blocks until news() is no longer `seen`, or `stop` fires.
  void AwaitNews(std::uint64_t seen, std::stop_token stop) const;
  /// Returns how many tokens of the prompt the cache had when the text began.
  std::int64_t cached_tokens() const { return state_->cached_tokens; }
  /// Returns the prompt's tokens with their log-probabilities, from the second one, if the request wants them. Complete
  /// once there is a token or the text has ended. The next call returns none.
  std::vector<SampledToken> TakePromptTokens();
  /// Returns how the text ended. REQUIRES: Next() has returned nothing.
  /// Errors: kCancelled if it was cancelled; kThrottled and kDeadlineExceeded as GenerationRequest says; those of the
  /// model.
  Result<FinishReason> result() const;
  const GenerationRequest& request() const;
  /// Ends the generation: no more tokens are needed.
  void Cancel();

 private:
  std::shared_ptr<GenerationState> state_;
};

/// Returns why a request must end now, if it must: kThrottled if it `waits` for its turn at `start_by`,
/// kDeadlineExceeded at `end_by`.
std::optional<Error> LateError(TimePoint start_by, TimePoint end_by, TimePoint now, bool waits);

}  // namespace millrace::serve
