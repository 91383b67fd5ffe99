// Decides which text the model generates next. It generates one at a time; the interface allows many at once.
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
  int max_tokens = 16;                ///< prompt and these tokens must fit the model's context
  TokenId end = tokenizer::kNoToken;  ///< the token that ends the text; Next() does not return it
  SamplingOptions sampling;
};

enum class FinishReason { kEnd, kLength };  ///< kEnd: the end token; kLength: max_tokens were generated

/// The consumer's handle of one text that is being generated. One owner, one thread. The destructor cancels it.
class Generation {
 public:
  Generation(Generation&&) noexcept = default;
  Generation& operator=(Generation&&) = delete;
  ~Generation();

  /// Returns the next token. Blocks. Returns nothing at the end, or after `stop` has fired.
  std::optional<TokenId> Next(std::stop_token stop);
  /// Returns how the text ended. REQUIRES: Next() has returned nothing.
  /// Errors: kCancelled if it was cancelled; those of the model.
  Result<FinishReason> result() const;
  const GenerationRequest& request() const;
  /// Ends the generation: no more tokens are needed.
  void Cancel();

 private:
  friend class Scheduler;
  struct State;
  explicit Generation(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// Owns the thread on which the model runs. Thread-safe. The destructor ends running and waiting generations with
/// kCancelled.
class Scheduler {
 public:
  struct Options {
    int max_admitted = 64;   ///< generations running or waiting
    int prompt_chunk = 256;  ///< prompt tokens between two checks for cancellation
  };
  /// REQUIRES: `model` outlives this object.
  Scheduler(LanguageModel& model, Options options);
  ~Scheduler();

  /// Admits all of `requests` or none.
  /// Errors: kThrottled if there would be more than max_admitted with those that run or wait; kInvalidArgument if the
  /// requests alone are more than that.
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
  TaskScope scope_;  ///< the last member: joined before the others are destroyed
};

}  // namespace millrace::serve
