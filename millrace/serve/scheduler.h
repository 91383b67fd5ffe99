// Decides which text the model works on next. One at a time for now; the interface leaves room for many at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/serve/language_model.h"
#include "millrace/serve/sampler.h"

namespace millrace::serve {

struct GenerationRequest {
  std::vector<TokenId> prompt;        ///< at least one token
  int max_tokens = 16;                ///< prompt and these must fit the model's context
  TokenId end = tokenizer::kNoToken;  ///< the token that ends the text; it is not yielded
  SamplingOptions sampling;
};

enum class FinishReason { kEnd, kLength };  ///< the end token came; max_tokens were made

/// The consumer's end of one text being made. One owner, one thread. Its destruction lets the model stop working on it.
class Generation {
 public:
  Generation(Generation&&) noexcept = default;
  Generation& operator=(Generation&&) = delete;
  ~Generation();

  /// The next token. Blocks; nothing at the end, or once `stop` has fired.
  std::optional<TokenId> Next(std::stop_token stop);
  /// How it ended: meaningful after Next has yielded nothing. kCancelled if it was cut short.
  Result<FinishReason> result() const;
  const GenerationRequest& request() const;
  /// No more tokens are wanted.
  void Cancel();

 private:
  friend class Scheduler;
  struct State;
  explicit Generation(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// Owns the thread that the model runs on. Submit and the counts may be called from any thread. Destruction ends what
/// is under way or waits with kCancelled.
class Scheduler {
 public:
  struct Options {
    int max_admitted = 64;   ///< generations running or waiting
    int prompt_chunk = 256;  ///< prompt tokens computed between two looks at cancellation
  };
  /// `model` must outlive it.
  Scheduler(LanguageModel& model, Options options);
  ~Scheduler();

  /// Admits all of `requests` or none: kThrottled when they would be too many with those that are there already,
  /// kInvalidArgument when they would be too many by themselves.
  Result<std::vector<Generation>> Submit(std::vector<GenerationRequest> requests) MR_EXCLUDES(mutex_);

  int running() const { return running_.load(std::memory_order_relaxed); }
  int waiting() const MR_EXCLUDES(mutex_);

 private:
  void Run(std::stop_token stop) MR_EXCLUDES(mutex_);
  Result<FinishReason> Generate(Generation::State& generation, std::stop_token stop);
  Result<std::span<const float>> ReadPrompt(Sequence& sequence, const Generation::State& generation,
                                            std::stop_token stop);

  LanguageModel& model_;
  const Options options_;
  std::atomic<int> running_{0};
  mutable Mutex mutex_;
  CondVar arrived_;
  std::deque<std::shared_ptr<Generation::State>> queue_ MR_GUARDED_BY(mutex_);
  TaskScope scope_;  ///< last: joined before the rest goes
};

}  // namespace millrace::serve
