// The batch of texts that the model works on. Texts join and leave it at any token (continuous batching; Yu et al.
// 2022, Orca), and prompts are read in parts beside texts that are being generated.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/serve/block_pool.h"
#include "millrace/serve/drafter.h"
#include "millrace/serve/generation.h"
#include "millrace/serve/language_model.h"
#include "millrace/serve/prompt_pace.h"
#include "millrace/serve/sampler.h"

namespace millrace::serve {

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

/// The limits of a scheduler and of its steps.
struct SchedulerOptions {
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
/// Running texts, with their samplers and their blocks of the cache. Decides which tokens the model computes in the
/// next step, and computes them. One owner, no locking.
class RunningBatch {
 public:
  /// `draft`: a model that guesses what texts say next; may be null.
  /// REQUIRES: the models and `clock` outlive this object, and the models have the same vocabulary.
  RunningBatch(LanguageModel& model, const SchedulerOptions& options, LanguageModel* draft, Clock& clock);
  ~RunningBatch();

  bool empty() const { return sequences_.empty(); }
  std::size_t size() const { return sequences_.size(); }
  /// As they are after the last call of TakeEnded().
  const SchedulerCounters& counters() const { return counters_; }

  /// Returns whether the cache has room for one more prompt of `tokens` tokens, and for its first token. True for the
  /// first text.
  bool HasRoomFor(std::size_t tokens) const;
  void AddText(std::shared_ptr<GenerationState> text);
  /// Ends the texts that nobody waits for any more, and those that are late.
  void EndGoneAndLate();
  /// Gives each text that generates its next tokens, and reads parts of prompts. Does nothing without texts. Blocks for
  /// a step of the model.
  void Step();
  /// Ends all texts with an error, for their consumers too.
  void Abort(const Error& why);

  /// Returns the tokens that were generated since the last call, by user.
  std::map<int, int> TakeCharges();
  struct EndedText {
    std::shared_ptr<GenerationState> state;
    Result<FinishReason> result;
  };
  /// Removes the texts that have ended. Their consumers do not know it yet.
  std::vector<EndedText> TakeEnded();

  /// Returns how many tokens of texts that become vectors may be computed before the next step.
  std::size_t EmbeddingTokens() const;
  void CountEmbedded(std::size_t tokens) { counters_.tokens += tokens; }

 private:
  struct RunningSequence;
  /// A text's share of a step.
  struct StepShare {
    RunningSequence* text;
    std::size_t past;             ///< tokens that the cache had of the text when the share was chosen
    std::size_t count;            ///< tokens behind them that the text has
    std::vector<TokenId> drafts;  ///< that may follow the text's last token
    std::vector<TokenId> tokens;  ///< both
  };

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
  void TellPrompt(const StepShare& share, std::span<const float> logits);
  void End(RunningSequence& text, Result<FinishReason> how);

  LanguageModel& model_;
  const SchedulerOptions options_;
  Clock& clock_;
  /// The memory that the samplers of all texts share.
  const std::shared_ptr<SamplingMemory> sampling_memory_ = std::make_shared<SamplingMemory>();
  BlockPool pool_;
  PromptPace pace_;
  std::optional<Drafter> drafter_;
  std::list<RunningSequence> sequences_;  ///< the one that came first in front
  std::size_t turn_ = 0;
  SchedulerCounters counters_;
};

}  // namespace millrace::serve
