// Decides which tokens the model computes next. Texts join and leave the batch at any token (continuous batching; Yu et
// al. 2022, Orca), and prompts are read in parts beside texts that are being generated.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/serve/block_pool.h"
#include "millrace/serve/drafter.h"
#include "millrace/serve/language_model.h"
#include "millrace/serve/prompt_pace.h"
#include "millrace/serve/sampler.h"

namespace millrace::serve {

struct GenerationRequest {
  std::vector<TokenId> prompt;  ///< at least one token
  int max_tokens = 16;          ///< prompt and these tokens must fit the model's context
  std::vector<TokenId> ends;    ///< tokens that end the text; Next() does not return them
  SamplingOptions sampling;
  int user = 0;                                 ///< whose it is: users get equal parts of the model
  TimePoint start_by = TimePoint::max();        ///< the text ends with kThrottled if it still waits then
  TimePoint end_by = TimePoint::max();          ///< the text ends with kDeadlineExceeded if it has not ended by then
  std::shared_ptr<const Adapter> adapter = {};  ///< null: the model's own weights
};

enum class FinishReason { kEnd, kLength };  ///< kEnd: an end token; kLength: max_tokens were generated

/// The consumer's handle of one text that is being generated. One owner, one thread. The destructor cancels it.
class Generation {
 public:
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
  /// Returns how the text ended. REQUIRES: Next() has returned nothing.
  /// Errors: kCancelled if it was cancelled; kThrottled and kDeadlineExceeded as GenerationRequest says; those of the
  /// model.
  Result<FinishReason> result() const;
  const GenerationRequest& request() const;
  /// Ends the generation: no more tokens are needed.
  void Cancel();

 private:
  friend class Scheduler;
  struct News;
  struct State;
  explicit Generation(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// Texts that are to become vectors.
struct EmbeddingTask {
  std::vector<std::vector<TokenId>> texts;
  int user = 0;                           ///< as of a GenerationRequest
  TimePoint start_by = TimePoint::max();  ///< the task ends with kThrottled if it still waits then
  TimePoint end_by = TimePoint::max();    ///< it ends with kDeadlineExceeded if it has not ended by then
};
struct EmbeddingJob;

/// The counters of a scheduler since it started, and the present state of its cache.
struct SchedulerCounters {
  std::uint64_t steps = 0;                                ///< of the model
  std::uint64_t tokens = 0;                               ///< that it computed
  std::uint64_t shared_tokens = 0;                        ///< that it need not compute, because the cache had them
  std::uint64_t drafted_tokens = 0, accepted_tokens = 0;  ///< guesses, and those that came true
  std::uint64_t failed_drafts = 0;                        ///< calls of the draft model
  std::uint64_t preemptions = 0;        ///< texts whose blocks others needed, and that were computed again later
  std::uint64_t preempted_drafts = 0;   ///< guesses that were dropped because their text was pre-empted in this step
  int used_blocks = 0, all_blocks = 0;  ///< of the cache
};

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
  struct Options {
    int max_admitted = 64;   ///< generations and embedding tasks, running or waiting
    int max_of_user = 0;     ///< of them, of one user; 0: as many as of all
    int max_running = 32;    ///< generations in a step
    int prompt_chunk = 256;  ///< tokens of prompts in a step while no text waits for its next token
    /// The same beside texts that do, until enough steps were timed. From then on, as many that a step takes `slowdown`
    /// times as long as it usually does without them (PromptPace), from 8 to prompt_chunk. `slowdown` 0: mixed_chunk
    /// always.
    int mixed_chunk = 64;
    double slowdown = 2;
    /// The most tokens of a text that are guessed, and computed at once: by the draft model, or else from what the text
    /// repeats (prompt look-up; Saxena 2023). Guesses change no text: a token is drawn as if there were none, and wrong
    /// guesses are dropped. 0: none.
    int drafts = 6;
    /// Tokens of texts that are embedded between two steps; a text is never cut. Beside texts that wait for their next
    /// token, the number of tokens for prompts takes its place.
    int embedding_chunk = 512;
    int drafting_texts = 4;  ///< the most running texts with which guesses are made: more texts use the processor well
  };
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
  struct RunningSequence;
  using RunningSequences = std::list<RunningSequence>;
  /// A text's share of a step.
  struct StepShare {
    RunningSequence* text;
    std::size_t past;             ///< tokens that the cache had of the text when the share was chosen
    std::size_t count;            ///< tokens behind them that the text has
    std::vector<TokenId> drafts;  ///< that may follow the text's last token
    std::vector<TokenId> tokens;  ///< both
  };

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
  std::size_t MaxDraftTokens(const RunningSequence& text) const;
  std::vector<TokenId> DraftTokens(const RunningSequence& text) const;
  void AddDrafts(std::vector<StepShare>& shares);
  int BlocksFor(std::size_t tokens) const;
  std::vector<const RunningSequence*> Paused() const;
  static std::size_t TokensOf(std::span<const StepShare> shares);
  std::vector<StepShare> ChooseShares();
  void DividePrompts(std::vector<RunningSequence*> reading, std::size_t tokens, std::vector<StepShare>& shares);
  std::vector<StepShare> GiveBlocks(std::vector<StepShare> shares);
  bool TakeBlocks(RunningSequence& text, std::size_t count);
  void Preempt(RunningSequence& text);
  void Compute(std::span<const StepShare> shares);
  void Advance(const StepShare& share, std::span<const float> logits);
  std::shared_ptr<EmbeddingJob> NextEmbedding() MR_EXCLUDES(mutex_);
  void EmbedSome() MR_EXCLUDES(mutex_);
  void End(RunningSequence& text, Result<FinishReason> how);
  void RemoveEnded() MR_EXCLUDES(mutex_);

  LanguageModel& model_;
  const Options options_;
  Clock& clock_;
  /// Of all texts' samplers. Only the scheduler's thread draws.
  const std::shared_ptr<SamplingMemory> sampling_memory_ = std::make_shared<SamplingMemory>();
  // Of the scheduler's thread.
  BlockPool pool_;
  PromptPace pace_;
  std::optional<Drafter> drafter_;
  RunningSequences sequences_;  ///< running, the one that came first in front
  std::size_t turn_ = 0;
  SchedulerCounters done_;

  mutable Mutex mutex_;
  CondVar arrived_;
  std::deque<std::shared_ptr<Generation::State>> queue_ MR_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<EmbeddingJob>> embeddings_ MR_GUARDED_BY(mutex_);  ///< the last served behind
  std::map<int, User> users_ MR_GUARDED_BY(mutex_);
  int running_ MR_GUARDED_BY(mutex_) = 0;
  SchedulerCounters counters_ MR_GUARDED_BY(mutex_);  ///< done_ after the last step
  TaskScope scope_;                                   ///< the last member: joined before the others are destroyed
};

}  // namespace millrace::serve
