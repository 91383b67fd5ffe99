#include "millrace/serve/running_batch.h"

#include <algorithm>
#include <cassert>
#include <tuple>
#include <utility>

namespace millrace::serve {

/// A text that is being generated. Its tokens are the prompt and those that were drawn.
struct RunningBatch::RunningSequence {
  RunningSequence(std::shared_ptr<GenerationState> of, std::shared_ptr<SamplingMemory> memory)
      : state(std::move(of)),
        sampler(state->request.sampling, state->request.prompt, std::move(memory)),
        tokens(state->request.prompt) {}

  std::size_t left() const { return tokens.size() - stored; }
  bool generates() const { return left() == 1 && stored > 0; }
  /// Returns whether the log-probabilities of tokens of the prompt are still wanted.
  bool tells_prompt() const { return state->request.prompt_logprobs && told < state->request.prompt.size(); }
  const Adapter* adapter() const { return state->request.adapter.get(); }
  std::uint64_t root() const { return adapter() != nullptr ? adapter()->id() : 0; }  ///< of its blocks

  std::shared_ptr<GenerationState> state;
  Sampler sampler;
  std::vector<TokenId> tokens;
  std::size_t stored = 0;            ///< tokens that the cache has
  std::vector<std::int32_t> blocks;  ///< that have them
  std::size_t told = 1;              ///< tokens of the prompt whose log-probabilities were told; the first has none
  int made = 0;
  int uncharged = 0;       ///< tokens that its user's account does not have yet
  std::size_t drafts = 2;  ///< the most that are made at a time
  Drafter::Sequence draft;
  bool has_ended = false;
  Result<FinishReason> result = FinishReason::kLength;  ///< once it has ended
};

RunningBatch::RunningBatch(LanguageModel& model, const SchedulerOptions& options, LanguageModel* draft, Clock& clock)
    : model_(model),
      options_(options),
      clock_(clock),
      pool_(model.cache()),
      pace_({.first = static_cast<std::size_t>(options.mixed_chunk),
             .least = static_cast<std::size_t>(std::min(options.mixed_chunk, 8)),
             .most = static_cast<std::size_t>(std::max(options.mixed_chunk, options.prompt_chunk)),
             .slowdown = options.slowdown}) {
  if (draft != nullptr) drafter_.emplace(*draft);
  counters_.all_blocks = model.cache().blocks;
}

RunningBatch::~RunningBatch() = default;

bool RunningBatch::HasRoomFor(std::size_t tokens) const {
  // A text that was pre-empted comes first: it is in sequences_, without blocks.
  int promised = BlocksFor(tokens);
  for (const RunningSequence& text : sequences_) {
    promised += BlocksFor(text.tokens.size()) - static_cast<int>(text.blocks.size());
  }
  return promised <= pool_.available() || sequences_.empty();
}

void RunningBatch::AddText(std::shared_ptr<GenerationState> text) {
  sequences_.emplace_back(std::move(text), sampling_memory_);
}

void RunningBatch::EndGoneAndLate() {
  const TimePoint now = clock_.Now();
  for (RunningSequence& text : sequences_) {
    const GenerationRequest& request = text.state->request;
    if (text.state->cancelled) {
      End(text, Fail(Code::kCancelled, "the generation was cut short"));
    } else if (auto late = LateError(request.start_by, request.end_by, now, /*waits=*/false)) {
      End(text, Fail(*std::move(late)));
    }
  }
}

void RunningBatch::Step() {
  std::vector<StepShare> shares = ChooseShares();
  AddDrafts(shares);
  Compute(GiveBlocks(std::move(shares)));
}

void RunningBatch::Abort(const Error& why) {
  for (RunningSequence& text : sequences_) text.state->End(Fail(why));
}

std::map<int, int> RunningBatch::TakeCharges() {
  std::map<int, int> made;
  for (RunningSequence& text : sequences_) made[text.state->request.user] += std::exchange(text.uncharged, 0);
  return made;
}

std::vector<RunningBatch::EndedText> RunningBatch::TakeEnded() {
  std::vector<EndedText> ended;
  for (auto text = sequences_.begin(); text != sequences_.end();) {
    if (!text->has_ended) {
      ++text;
      continue;
    }
    ended.push_back({.state = std::move(text->state), .result = std::move(text->result)});
    text = sequences_.erase(text);
  }
  counters_.used_blocks = pool_.used();
  return ended;
}

std::size_t RunningBatch::EmbeddingTokens() const {
  return sequences_.empty() ? static_cast<std::size_t>(options_.embedding_chunk) : pace_.Tokens(sequences_.size());
}

/// Returns how many tokens behind the next one are worth guessing.
std::size_t RunningBatch::MaxDraftTokens(const RunningSequence& text) const {
  if (sequences_.size() > static_cast<std::size_t>(options_.drafting_texts)) return 0;
  const auto left = static_cast<std::size_t>(text.state->request.max_tokens - text.made - 1);
  return std::min({left, text.drafts, static_cast<std::size_t>(options_.drafts)});
}

/// Returns the tokens that followed when the last three tokens, or the last two, stood in the text before.
std::vector<TokenId> RunningBatch::DraftTokens(const RunningSequence& text) const {
  const std::size_t most = MaxDraftTokens(text);
  if (most == 0) return {};
  const std::span<const TokenId> tokens(text.tokens);
  for (const std::size_t length : {std::size_t{3}, std::size_t{2}}) {
    if (tokens.size() <= length) continue;
    const auto last = tokens.last(length);
    const auto before = tokens.first(tokens.size() - 1);
    const auto found = std::ranges::find_end(before, last);
    if (found.empty()) continue;
    const auto behind = std::span(found.end(), tokens.end());
    const auto drafts = behind.first(std::min(most, behind.size()));
    return {drafts.begin(), drafts.end()};
  }
  return {};
}

/// Lets the draft model guess. Where it has no guess, those from what the text repeats stay.
void RunningBatch::AddDrafts(std::vector<StepShare>& shares) {
  if (!drafter_) return;
  std::vector<Drafter::DraftRequest> wanted;
  std::vector<StepShare*> wanting;
  for (StepShare& share : shares) {
    if (!share.text->generates()) continue;
    wanted.push_back({&share.text->draft,
                      share.text->tokens,
                      &share.text->sampler,
                      MaxDraftTokens(*share.text),
                      share.text->state->request.ends,
                      {}});
    wanting.push_back(&share);
  }
  if (wanted.empty()) return;
  // Texts go on without guesses.
  if (!drafter_->DraftTokens(wanted)) ++counters_.failed_drafts;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i].guesses.empty()) wanting[i]->drafts = std::move(wanted[i].guesses);
  }
}

/// Returns the number of blocks for `tokens` tokens and the one behind them.
int RunningBatch::BlocksFor(std::size_t tokens) const {
  return static_cast<int>(tokens / static_cast<std::size_t>(pool_.block_tokens())) + 1;
}

/// Returns the texts that have no place in the next step: the last ones of the users who have the most.
std::vector<const RunningBatch::RunningSequence*> RunningBatch::Paused() const {
  const auto most = static_cast<std::size_t>(options_.max_running);
  if (sequences_.size() <= most) return {};
  std::map<int, int> of_user;
  // Each text with the number of its user's texts before it, and of all texts before it.
  std::vector<std::tuple<int, std::size_t, const RunningSequence*>> places;
  for (const RunningSequence& text : sequences_)
    places.emplace_back(of_user[text.state->request.user]++, places.size(), &text);
  std::ranges::sort(places);
  std::vector<const RunningSequence*> paused;
  for (std::size_t i = most; i < places.size(); ++i) paused.push_back(std::get<2>(places[i]));
  return paused;
}

/// Returns how many tokens a step computes for texts that wait for their next one.
std::size_t RunningBatch::TokensOf(std::span<const StepShare> shares) {
  std::size_t tokens = 0;
  for (const StepShare& share : shares) tokens += share.text->generates() ? 1 + share.drafts.size() : 0;
  return tokens;
}

/// Chooses who computes how many tokens: one for each text that generates, and for prompts equal parts of the rest.
std::vector<RunningBatch::StepShare> RunningBatch::ChooseShares() {
  std::vector<StepShare> shares;
  std::vector<RunningSequence*> reading;
  int spare = pool_.available();
  bool one_waits = false;
  const std::vector<const RunningSequence*> paused = Paused();
  for (RunningSequence& text : sequences_) {
    if (std::ranges::find(paused, &text) != paused.end()) continue;
    spare -= BlocksFor(text.tokens.size()) - static_cast<int>(text.blocks.size());
    if (text.stored == 0) {
      // A text that begins, or begins again, waits until its tokens have room, and so do those behind it that begin.
      // Otherwise it would be pre-empted soon.
      if ((one_waits || spare < 0) && &text != &sequences_.front()) {
        one_waits = true;
        continue;
      }
      // Tokens that the cache has are not computed, so nothing is known of what follows them.
      if (!text.tells_prompt()) text.blocks = pool_.Share(text.tokens, text.root());
      text.stored = text.blocks.size() * static_cast<std::size_t>(pool_.block_tokens());
      counters_.shared_tokens += text.stored;
      if (text.made == 0) text.state->cached_tokens = static_cast<std::int64_t>(text.stored);
    }
    if (text.generates()) {
      shares.push_back({&text, text.stored, 1, DraftTokens(text), {}});
    } else {
      reading.push_back(&text);
    }
  }
  if (reading.empty()) return shares;
  std::size_t left = static_cast<std::size_t>(options_.prompt_chunk);
  if (!shares.empty()) left = pace_.Tokens(TokensOf(shares));
  std::map<int, std::vector<RunningSequence*>> by_user;
  for (RunningSequence* text : reading) by_user[text->state->request.user].push_back(text);
  std::vector<std::pair<std::size_t, int>> order;  // users who need little first: they leave tokens to the others
  for (const auto& [user, texts] : by_user) {
    std::size_t needed = 0;
    for (const RunningSequence* text : texts) needed += text->left();
    order.emplace_back(needed, user);
  }
  if (order.size() > left) {
    std::ranges::rotate(order, order.begin() + static_cast<std::ptrdiff_t>(turn_ % order.size()));
  } else {
    std::ranges::sort(order);
  }
  for (std::size_t i = 0; i < order.size() && left > 0; ++i) {
    const auto [needed, user] = order[i];
    const std::size_t part = std::min(needed, std::max<std::size_t>(1, left / (order.size() - i)));
    DividePrompts(std::move(by_user[user]), part, shares);
    left -= part;
  }
  ++turn_;
  return shares;
}

/// Divides `left` tokens among the prompts of a user.
void RunningBatch::DividePrompts(std::vector<RunningSequence*> reading, std::size_t left,
                                 std::vector<StepShare>& shares) {
  // Prompts that need less than their part leave the rest to the longer ones behind them. Where there are fewer tokens
  // than prompts, they go round.
  std::ranges::rotate(reading, reading.begin() + static_cast<std::ptrdiff_t>(turn_ % reading.size()));
  if (reading.size() <= left) {
    // Equal prompts keep their order.
    std::vector<std::pair<std::size_t, std::size_t>> order;
    for (std::size_t i = 0; i < reading.size(); ++i) order.emplace_back(reading[i]->left(), i);
    std::ranges::sort(order);
    std::vector<RunningSequence*> sorted;
    for (const auto& [needed, place] : order) sorted.push_back(reading[place]);
    reading = std::move(sorted);
  }
  for (std::size_t i = 0; i < reading.size() && left > 0; ++i) {
    std::size_t part = std::max<std::size_t>(1, left / (reading.size() - i));
    // Each token that is told of has logits, as many as the vocabulary.
    constexpr std::size_t kMostTold = 32;
    if (reading[i]->tells_prompt()) part = std::min(part, kMostTold);
    shares.push_back({reading[i], reading[i]->stored, std::min(part, reading[i]->left()), {}, {}});
    left -= shares.back().count;
  }
}

/// Takes the blocks that the shares need, those of the texts that came first before others. Returns the shares that
/// have them. A text that gives up its blocks has no share in this step.
std::vector<RunningBatch::StepShare> RunningBatch::GiveBlocks(std::vector<StepShare> shares) {
  std::vector<StepShare> given;
  for (RunningSequence& text : sequences_) {
    const auto share = std::ranges::find(shares, &text, &StepShare::text);
    if (share == shares.end()) continue;
    if (share->past != text.stored) {
      // The text was pre-empted above. Its share was to follow tokens that the cache no longer has.
      counters_.preempted_drafts += share->drafts.size();
      continue;
    }
    // Guesses are not worth another text's blocks.
    if (!TakeBlocks(text, share->count + share->drafts.size())) share->drafts.clear();
    // The last text that has blocks gives them up, unless that is this one or one before.
    bool has_room = TakeBlocks(text, share->count);
    while (!has_room) {
      const auto last = std::find_if(sequences_.rbegin(), sequences_.rend(), [&](const RunningSequence& other) {
        return &other == &text || !other.blocks.empty();
      });
      if (&*last == &text) break;
      Preempt(*last);
      has_room = TakeBlocks(text, share->count);
    }
    if (has_room) {
      if (!share->drafts.empty()) {
        share->tokens.assign(text.tokens.end() - static_cast<std::ptrdiff_t>(share->count), text.tokens.end());
        share->tokens.insert(share->tokens.end(), share->drafts.begin(), share->drafts.end());
      }
      given.push_back(std::move(*share));
    } else {
      Preempt(text);
    }
  }
  // The model computes neighbours of one adapter together.
  const auto root = [](const StepShare& share) { return share.text->root(); };
  for (auto next = given.begin(); next != given.end(); ++next) {
    std::rotate(std::ranges::upper_bound(given.begin(), next, root(*next), {}, root), next, next + 1);
  }
  return given;
}

bool RunningBatch::TakeBlocks(RunningSequence& text, std::size_t count) {
  const auto tokens = static_cast<std::size_t>(pool_.block_tokens());
  while (text.blocks.size() * tokens < text.stored + count) {
    const std::int32_t block = pool_.TakeBlock();
    if (block < 0) return false;
    text.blocks.push_back(block);
  }
  return true;
}

void RunningBatch::Preempt(RunningSequence& text) {
  if (text.stored > 0) ++counters_.preemptions;
  pool_.Release(text.blocks);
  text.blocks.clear();
  text.stored = 0;
}

void RunningBatch::Compute(std::span<const StepShare> shares) {
  if (shares.empty()) return;
  std::vector<StepPart> parts;
  std::size_t tokens = 0;
  for (const StepShare& share : shares) {
    const RunningSequence& text = *share.text;
    assert(share.past == text.stored && (share.drafts.empty() || share.count == text.left()));
    tokens += share.count + share.drafts.size();
    parts.push_back({.tokens = share.drafts.empty() ? std::span(text.tokens).subspan(text.stored, share.count)
                                                    : std::span(share.tokens),
                     .past = static_cast<int>(text.stored),
                     .blocks = text.blocks,
                     .logits = text.tells_prompt()          ? static_cast<int>(share.count)
                               : share.count == text.left() ? 1 + static_cast<int>(share.drafts.size())
                                                            : 0,
                     .adapter = text.adapter()});
  }
  const std::size_t waiting = TokensOf(shares);
  const TimePoint began = clock_.Now();
  const auto logits = model_.Step(parts);
  if (logits) pace_.AddStep(waiting, tokens - waiting, clock_.Now() - began);
  if (!logits && shares.size() > 1) {
    for (const StepShare& share : shares) Compute({&share, 1});
    return;
  }
  if (!logits) return End(*shares[0].text, std::unexpected(logits.error()));
  ++counters_.steps;
  std::size_t next = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const std::size_t size = static_cast<std::size_t>(parts[i].logits) * static_cast<std::size_t>(model_.vocab_size());
    counters_.tokens += parts[i].tokens.size();
    Advance(shares[i], logits->subspan(next, size));
    next += size;
  }
}

/// Tells the tokens of the prompt that follow those of the share.
void RunningBatch::TellPrompt(const StepShare& share, std::span<const float> logits) {
  RunningSequence& text = *share.text;
  const std::vector<TokenId>& prompt = text.state->request.prompt;
  const auto width = static_cast<std::size_t>(model_.vocab_size());
  MutexLock lock(text.state->prompt_mutex);
  for (std::size_t row = 0; row < share.count; ++row) {
    const std::size_t next = share.past + row + 1;
    if (next != text.told || next >= prompt.size()) continue;
    text.state->prompt_tokens.push_back(text.sampler.WithLogprobs(logits.subspan(row * width, width), prompt[next]));
    ++text.told;
  }
}

/// Draws a token from each row of `logits`, as long as the token before was guessed. Notes what was stored.
void RunningBatch::Advance(const StepShare& share, std::span<const float> logits) {
  RunningSequence& text = *share.text;
  const std::size_t first_stored = text.stored, width = static_cast<std::size_t>(model_.vocab_size());
  const GenerationRequest& request = text.state->request;
  const bool is_read = share.count == text.left();
  if (text.tells_prompt()) {
    TellPrompt(share, logits);
    logits = logits.last(is_read ? width : 0);
  }
  text.stored += share.count;
  std::optional<Result<FinishReason>> end;
  if (is_read && request.max_tokens == 0) end = FinishReason::kLength;
  std::size_t right = 0;  // guesses
  for (std::size_t row = 0; row * width < logits.size() && !end; ++row) {
    SampledToken sampled = text.sampler.Sample(logits.subspan(row * width, width));
    const TokenId token = sampled.token;
    if (token == tokenizer::kNoToken && text.sampler.stuck()) {
      end = FinishReason::kLength;
    } else if (token == tokenizer::kNoToken) {
      end = Fail(Code::kInternal, "no token can follow: the model's scores are not numbers");
    } else if (std::ranges::find(request.ends, token) != request.ends.end()) {
      end = FinishReason::kEnd;
    } else {
      text.state->AddToken(std::move(sampled));
      text.tokens.push_back(token);
      ++text.uncharged;
      if (++text.made == request.max_tokens) end = FinishReason::kLength;
    }
    if (row == share.drafts.size() || share.drafts[row] != token) break;
    ++right;
    ++text.stored;
  }
  counters_.drafted_tokens += share.drafts.size();
  counters_.accepted_tokens += right;
  // Texts that repeat themselves get longer guesses, others shorter ones.
  if (!share.drafts.empty()) text.drafts = right == share.drafts.size() ? text.drafts + 2 : right + 1;
  const auto block_tokens = static_cast<std::size_t>(pool_.block_tokens());
  const std::size_t known = std::min(text.stored, text.tokens.size());
  for (std::size_t full = first_stored / block_tokens; (full + 1) * block_tokens <= known; ++full) {
    pool_.Publish(text.tokens, std::span(text.blocks).first(full + 1), text.root());
  }
  if (end) End(text, *std::move(end));
}

/// The text leaves the batch: TakeEnded() removes it.
void RunningBatch::End(RunningSequence& text, Result<FinishReason> how) {
  pool_.Release(text.blocks);
  text.blocks.clear();
  if (drafter_) drafter_->Release(text.draft);
  text.has_ended = true;
  text.result = std::move(how);
}

}  // namespace millrace::serve
