// Owns the thread on which the model runs: texts wait in its queue, join the running batch in their users' turns, and
// leave it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <stop_token>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/serve/generation.h"
#include "millrace/serve/language_model.h"
#include "millrace/serve/running_batch.h"

namespace millrace::serve {

/// Texts that are to become vectors.
struct EmbeddingTask {
  std::vector<std::vector<TokenId>> texts;
  int user = 0;                           ///< as of a GenerationRequest
  TimePoint start_by = TimePoint::max();  ///< the task ends with kThrottled if it still waits then
  TimePoint end_by = TimePoint::max();    ///< it ends with kDeadlineExceeded if it has not ended by then
};
struct EmbeddingJob;

/// Owns the thread on which the model runs. Thread-safe. The destructor ends running and waiting generations with
/// kCancelled.
///
/// In each step, every running text gets its next token, and prompts share a number of tokens: users get equal parts,
/// and so do the prompts of each user. If more texts wait than run, the next one is of the user for whom the fewest
/// tokens were computed (start-time fair queueing; Goyal et al. 1996). A user without a running text need not wait for
/// a place: if the batch is full, users with many texts pause some of them. If the cache is full, the text that came
/// last gives up its blocks; its tokens are computed again when there is room, and the text goes on as it would have.
/// Texts of different adapters share steps, but no blocks.
/// If a step fails, its texts are tried one by one, and only those that fail again end.
class Scheduler {
 public:
  using Options = SchedulerOptions;
  /// `draft`: a model that guesses what texts say next; may be null.
  /// REQUIRES: the models and `clock` outlive this object, and the models have the same vocabulary.
  Scheduler(LanguageModel& model, Options options, LanguageModel* draft = nullptr, Clock& clock = SystemClock());
  ~Scheduler();

  /// Admits all of `requests` or none.
  /// Errors: kThrottled if there would be more than max_admitted with those that run or wait, or more than max_of_user
  /// of a user; kInvalidArgument if the requests alone are more than that, or one does not fit the model's context or
  /// its cache.
  Result<std::vector<Generation>> Submit(std::vector<GenerationRequest> requests) MR_EXCLUDES(mutex_);

  /// Returns a vector for each text. Takes turns with the steps and with other calls: the next one is of the user for
  /// whom the fewest tokens were computed. Blocks until the vectors are there or `stop` fires.
  /// Errors: kThrottled if there are too many generations and calls, of all or of the user; kInvalidArgument if a text
  /// is empty or longer than the context; kThrottled and kDeadlineExceeded as EmbeddingTask says; kCancelled after
  /// `stop`; those of LanguageModel::Embed().
  Result<std::vector<std::vector<float>>> Embed(EmbeddingTask task, std::stop_token stop) MR_EXCLUDES(mutex_);

  int running() const MR_EXCLUDES(mutex_);
  int waiting() const MR_EXCLUDES(mutex_);
  SchedulerCounters counters() const MR_EXCLUDES(mutex_);

 private:
  /// The state of a user in the queue.
  struct User {
    std::uint64_t computed = 0;  ///< tokens; at least those of every user that was there when this one came
    int waiting = 0, running = 0, embedding = 0;
    int present() const { return waiting + running + embedding; }
    bool active() const { return present() > 0; }
  };

  void Run(std::stop_token stop) MR_EXCLUDES(mutex_);
  bool WaitForWork(std::stop_token stop) MR_EXCLUDES(mutex_);
  void DropGoneAndLate() MR_EXCLUDES(mutex_);
  Status CheckUser(int user, int more) const MR_REQUIRES(mutex_);
  User& Arrive(int user) MR_REQUIRES(mutex_);
  void Admit() MR_EXCLUDES(mutex_);
  std::size_t NextInQueue() const MR_REQUIRES(mutex_);
  std::shared_ptr<EmbeddingJob> NextEmbedding() MR_EXCLUDES(mutex_);
  void EmbedSome() MR_EXCLUDES(mutex_);
  void RemoveEnded() MR_EXCLUDES(mutex_);

  LanguageModel& model_;
  const Options options_;
  Clock& clock_;
  RunningBatch batch_;  ///< of the scheduler's thread

  mutable Mutex mutex_;
  CondVar arrived_;
  std::deque<std::shared_ptr<GenerationState>> queue_ MR_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<EmbeddingJob>> embeddings_ MR_GUARDED_BY(mutex_);  ///< the last served behind
  std::map<int, User> users_ MR_GUARDED_BY(mutex_);
  int running_ MR_GUARDED_BY(mutex_) = 0;
  SchedulerCounters counters_ MR_GUARDED_BY(mutex_);  ///< of batch_, after the last step
  TaskScope scope_;                                   ///< the last member: joined before the others are destroyed
};

}  // namespace millrace::serve
