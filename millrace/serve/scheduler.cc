#include "millrace/serve/scheduler.h"

#include <algorithm>
#include <cassert>
#include <tuple>

#include "millrace/serve/embedding_job.h"

namespace millrace::serve {

/// Counts what happens to the texts of one request, so that one thread can wait for all of them.
struct Generation::News {
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

struct Generation::State {
  State(GenerationRequest r, std::shared_ptr<News> n)
      : request(std::move(r)), news(std::move(n)), tokens(static_cast<std::size_t>(request.max_tokens)) {}

  void Add(SampledToken token) {
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
  const std::shared_ptr<News> news;
  std::atomic<bool> cancelled{false};
  Channel<SampledToken> tokens;  ///< has room for all: a slow consumer does not hold the model up
  Mutex mutex;
  bool has_ended MR_GUARDED_BY(mutex) = false;
  Result<FinishReason> result MR_GUARDED_BY(mutex) = Fail(Code::kCancelled, "the generation has not ended");
};

namespace {

/// Returns why a request must end now, if it must. `waits`: for its turn.
std::optional<Error> Late(const auto& request, TimePoint now, bool waits) {
  if (waits && now >= request.start_by) {
    return Error(Code::kThrottled, "the request waited for its turn as long as this server allows; try again later");
  }
  if (now >= request.end_by) return Error(Code::kDeadlineExceeded, "the request takes longer than this server allows");
  return std::nullopt;
}

}  // namespace

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
  News& news = *state_->news;
  MutexLock lock(news.mutex);
  return news.count;
}

void Generation::AwaitNews(std::uint64_t seen, std::stop_token stop) const {
  News& news = *state_->news;
  MutexLock lock(news.mutex);
  news.raised.Wait(news.mutex, std::move(stop), [&]() MR_NO_THREAD_SAFETY_ANALYSIS { return news.count != seen; });
}

Result<FinishReason> Generation::result() const {
  MutexLock lock(state_->mutex);
  return state_->result;
}

const GenerationRequest& Generation::request() const { return state_->request; }

/// A text that is being generated. Its tokens are the prompt and those that were drawn.
struct Scheduler::RunningSequence {
  RunningSequence(std::shared_ptr<Generation::State> of, std::shared_ptr<SamplingMemory> memory)
      : state(std::move(of)),
        sampler(state->request.sampling, state->request.prompt, std::move(memory)),
        tokens(state->request.prompt) {}

  std::size_t left() const { return tokens.size() - stored; }
  bool generates() const { return left() == 1 && stored > 0; }
  const Adapter* adapter() const { return state->request.adapter.get(); }
  std::uint64_t root() const { return adapter() != nullptr ? adapter()->id() : 0; }  ///< of its blocks

  std::shared_ptr<Generation::State> state;
  Sampler sampler;
  std::vector<TokenId> tokens;
  std::size_t stored = 0;            ///< tokens that the cache has
  std::vector<std::int32_t> blocks;  ///< that have them
  int made = 0;
  int uncharged = 0;       ///< tokens that its user's account does not have yet
  std::size_t drafts = 2;  ///< the most that are made at a time
  Drafter::Sequence draft;
  bool has_ended = false;
  Result<FinishReason> result = FinishReason::kLength;  ///< once it has ended
};

Scheduler::Scheduler(LanguageModel& model, Options options, LanguageModel* draft, Clock& clock)
    : model_(model),
      options_(options),
      clock_(clock),
      pool_(model.cache()),
      pace_({.first = static_cast<std::size_t>(options.mixed_chunk),
             .least = static_cast<std::size_t>(std::min(options.mixed_chunk, 8)),
             .most = static_cast<std::size_t>(std::max(options.mixed_chunk, options.prompt_chunk)),
             .slowdown = options.slowdown}) {
  if (draft != nullptr) drafter_.emplace(*draft);
  done_.all_blocks = counters_.all_blocks = model.cache().blocks;
  scope_.Spawn("generate", [this](std::stop_token stop) { Run(std::move(stop)); });
}

Scheduler::~Scheduler() {
  scope_.RequestStop();
  scope_.Join();
  for (RunningSequence& text : sequences_) text.state->End(Fail(Code::kCancelled, "the server is stopping"));
  MutexLock lock(mutex_);
  for (auto& generation : queue_) generation->End(Fail(Code::kCancelled, "the server is stopping"));
  for (auto& job : embeddings_) job->End(Fail(Code::kCancelled, "the server is stopping"));
}

int Scheduler::running() const {
  MutexLock lock(mutex_);
  return running_;
}

int Scheduler::waiting() const {
  MutexLock lock(mutex_);
  return static_cast<int>(queue_.size());
}

SchedulerCounters Scheduler::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

/// Checks that a user may have `more` requests.
Status Scheduler::CheckUser(int user, int more) const {
  const auto known = users_.find(user);
  const int there = known == users_.end() ? 0 : known->second.present();
  if (options_.max_of_user == 0 || there + more <= options_.max_of_user) return {};
  return Fail(Code::kThrottled, "{} requests of this user are under way or waiting, and the server takes {}", there,
              options_.max_of_user);
}

Result<std::vector<Generation>> Scheduler::Submit(std::vector<GenerationRequest> requests) {
  const int most = options_.max_admitted, wanted = static_cast<int>(requests.size());
  if (wanted > most)
    return Fail(Code::kInvalidArgument, "{} prompts in one request; this server takes {}", wanted, most);
  std::map<int, int> of_user;
  for (const GenerationRequest& request : requests) ++of_user[request.user];
  for (const auto& [user, count] : of_user) {
    if (options_.max_of_user > 0 && count > options_.max_of_user) {
      return Fail(Code::kInvalidArgument, "{} texts in one request; this server takes {} of a user", count,
                  options_.max_of_user);
    }
  }
  const std::int64_t cached = model_.cache().tokens();
  for (const GenerationRequest& request : requests) {
    const auto context = static_cast<std::size_t>(model_.context_length());
    const auto room = std::min(context, static_cast<std::size_t>(cached));
    if (request.prompt.empty() || request.max_tokens < 1 || request.prompt.size() >= room ||
        static_cast<std::size_t>(request.max_tokens) > room - request.prompt.size()) {
      return Fail(Code::kInvalidArgument, "{} prompt tokens and {} more do not fit the {} of {}", request.prompt.size(),
                  request.max_tokens, room < context ? "server's KV cache" : "model's context", room);
    }
  }
  MutexLock lock(mutex_);
  int present = running_ + static_cast<int>(queue_.size() + embeddings_.size());
  if (present + wanted > most)
    return Fail(Code::kThrottled, "{} generations are under way or waiting; try again", present);
  for (const auto& [user, count] : of_user) {
    MR_TRY(CheckUser(user, count));
  }
  std::vector<Generation> handles;
  const auto news = std::make_shared<Generation::News>();
  for (GenerationRequest& request : requests) {
    ++Arrive(request.user).waiting;
    auto state = std::make_shared<Generation::State>(std::move(request), news);
    queue_.push_back(state);
    handles.push_back(Generation(std::move(state)));
  }
  lock.Unlock();
  arrived_.NotifyOne();
  return handles;
}

Result<std::vector<std::vector<float>>> Scheduler::Embed(EmbeddingTask task, std::stop_token stop) {
  const auto context = static_cast<std::size_t>(model_.context_length());
  for (const auto& text : task.texts) {
    if (text.empty() || text.size() > context) {
      return Fail(Code::kInvalidArgument, "a text of {} tokens does not fit the model's context of {}", text.size(),
                  context);
    }
  }
  if (stop.stop_requested()) return Fail(Code::kCancelled, "the client has gone or the server stops");
  auto job = std::make_shared<EmbeddingJob>(std::move(task));
  {
    MutexLock lock(mutex_);
    const int present = running_ + static_cast<int>(queue_.size() + embeddings_.size());
    if (present >= options_.max_admitted)
      return Fail(Code::kThrottled, "{} requests are under way or waiting; try again", present);
    MR_TRY(CheckUser(job->task.user, 1));
    ++Arrive(job->task.user).embedding;
    embeddings_.push_back(job);
  }
  arrived_.NotifyOne();
  MutexLock lock(job->mutex);
  job->changed.Wait(job->mutex, stop, [&]() MR_NO_THREAD_SAFETY_ANALYSIS { return job->has_ended; });
  if (!job->has_ended) {
    job->cancelled.store(true, std::memory_order_relaxed);
    return Fail(Code::kCancelled, "the client has gone or the server stops");
  }
  MR_TRY(std::move(job->result));
  return std::move(job->vectors);
}

/// Returns the job whose turn it is: of the user for whom the fewest tokens were computed. It is the last one then.
/// Null if there is none. Ends those that are late.
std::shared_ptr<EmbeddingJob> Scheduler::NextEmbedding() {
  const TimePoint now = clock_.Now();
  MutexLock lock(mutex_);
  std::erase_if(embeddings_, [&](const auto& job) MR_NO_THREAD_SAFETY_ANALYSIS {
    if (!job->cancelled.load(std::memory_order_relaxed)) {
      auto late = Late(job->task, now, /*waits=*/job->vectors.empty());
      if (!late) return false;
      job->End(Fail(*std::move(late)));
    }
    --users_[job->task.user].embedding;
    return true;
  });
  const auto next = std::ranges::min_element(embeddings_, {}, [&](const auto& job) MR_NO_THREAD_SAFETY_ANALYSIS {
    return users_.at(job->task.user).computed;
  });
  if (next == embeddings_.end()) return nullptr;
  std::rotate(next, next + 1, embeddings_.end());
  return embeddings_.back();
}

/// Embeds the next texts of the job whose turn it is.
void Scheduler::EmbedSome() {
  const std::shared_ptr<EmbeddingJob> job = NextEmbedding();
  if (!job) return;
  const std::vector<std::vector<TokenId>>& all = job->task.texts;
  const std::size_t most =
      sequences_.empty() ? static_cast<std::size_t>(options_.embedding_chunk) : pace_.Tokens(sequences_.size());
  std::vector<std::span<const TokenId>> texts;
  std::size_t tokens = 0;
  for (std::size_t i = job->vectors.size(); i < all.size(); ++i) {
    if (!texts.empty() && tokens + all[i].size() > most) break;
    tokens += all[i].size();
    texts.emplace_back(all[i]);
  }
  auto vectors = model_.Embed(texts);
  if (vectors) {
    done_.tokens += tokens;
    for (auto& vector : *vectors) job->vectors.push_back(std::move(vector));
  }
  const bool ends = !vectors || job->vectors.size() == all.size();
  {
    MutexLock lock(mutex_);
    User& user = users_[job->task.user];
    if (vectors) user.computed += tokens;
    if (ends) --user.embedding;
    if (ends) std::erase(embeddings_, job);
  }
  if (ends) job->End(vectors ? Status() : std::unexpected(vectors.error()));
}

void Scheduler::Run(std::stop_token stop) {
  while (WaitForWork(stop)) {
    EmbedSome();
    DropGoneAndLate();
    Admit();
    std::vector<StepShare> shares = ChooseShares();
    AddDrafts(shares);
    Compute(GiveBlocks(std::move(shares)));
    RemoveEnded();
  }
}

/// Returns whether there is some, and not that the scheduler stops.
bool Scheduler::WaitForWork(std::stop_token stop) {
  if (sequences_.empty()) {
    MutexLock lock(mutex_);
    arrived_.Wait(mutex_, stop,
                  [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return !queue_.empty() || !embeddings_.empty(); });
  }
  return !stop.stop_requested();
}

void Scheduler::DropGoneAndLate() {
  const TimePoint now = clock_.Now();
  for (RunningSequence& text : sequences_) {
    if (text.state->cancelled) {
      End(text, Fail(Code::kCancelled, "the generation was cut short"));
    } else if (auto late = Late(text.state->request, now, /*waits=*/false)) {
      End(text, Fail(*std::move(late)));
    }
  }
  RemoveEnded();
  MutexLock lock(mutex_);
  std::erase_if(queue_, [&](const auto& generation) MR_NO_THREAD_SAFETY_ANALYSIS {
    const GenerationRequest& request = generation->request;
    Result<FinishReason> how = FinishReason::kEnd;
    if (generation->cancelled) {
      how = Fail(Code::kCancelled, "the client has gone");
    } else if (auto late = Late(request, now, /*waits=*/true)) {
      how = Fail(*std::move(late));
    } else {
      return false;
    }
    --users_[request.user].waiting;
    generation->End(std::move(how));
    return true;
  });
}

/// Returns the account of a user who has a new text. A user who comes back gets no credit for the time of absence.
Scheduler::User& Scheduler::Arrive(int user) {
  User& account = users_[user];
  if (account.active()) return account;
  std::optional<std::uint64_t> least;
  for (const auto& [other, each] : users_) {
    if (each.active() && (!least || each.computed < *least)) least = each.computed;
  }
  if (least) account.computed = std::max(account.computed, *least);
  return account;
}

/// Returns the place of the generation whose turn it is, or the size of the queue if none may join.
std::size_t Scheduler::NextInQueue() const {
  const auto most = static_cast<std::size_t>(options_.max_running);
  const bool is_full = sequences_.size() >= most;
  std::size_t next = queue_.size();
  const User* best = nullptr;
  for (std::size_t i = 0; i < queue_.size() && sequences_.size() < 2 * most; ++i) {
    const User& user = users_.at(queue_[i]->request.user);
    if (is_full && user.running > 0) continue;
    if (best != nullptr && user.computed >= best->computed) continue;
    best = &user;
    next = i;
  }
  return next;
}

/// Returns how many tokens behind the next one are worth guessing.
std::size_t Scheduler::MaxDraftTokens(const RunningSequence& text) const {
  if (sequences_.size() > static_cast<std::size_t>(options_.drafting_texts)) return 0;
  const auto left = static_cast<std::size_t>(text.state->request.max_tokens - text.made - 1);
  return std::min({left, text.drafts, static_cast<std::size_t>(options_.drafts)});
}

/// Returns the tokens that followed when the last three tokens, or the last two, stood in the text before.
std::vector<TokenId> Scheduler::DraftTokens(const RunningSequence& text) const {
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
void Scheduler::AddDrafts(std::vector<StepShare>& shares) {
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
  if (!drafter_->DraftTokens(wanted)) ++done_.failed_drafts;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i].guesses.empty()) wanting[i]->drafts = std::move(wanted[i].guesses);
  }
}

/// Returns the number of blocks for `tokens` tokens and the one behind them.
int Scheduler::BlocksFor(std::size_t tokens) const {
  return static_cast<int>(tokens / static_cast<std::size_t>(pool_.block_tokens())) + 1;
}

/// Lets texts join while the batch and the cache have room for them and their first token. One that was pre-empted
/// joins first: it is in texts_ already, without blocks.
void Scheduler::Admit() {
  int promised = 0;
  for (const RunningSequence& text : sequences_)
    promised += BlocksFor(text.tokens.size()) - static_cast<int>(text.blocks.size());
  MutexLock lock(mutex_);
  for (std::size_t next = NextInQueue(); next < queue_.size(); next = NextInQueue()) {
    const auto place = queue_.begin() + static_cast<std::ptrdiff_t>(next);
    const std::size_t tokens = (*place)->request.prompt.size();
    promised += BlocksFor(tokens);
    if (promised > pool_.available() && !sequences_.empty()) return;
    User& user = users_[(*place)->request.user];
    --user.waiting;
    ++user.running;
    user.computed += tokens;
    sequences_.emplace_back(std::move(*place), sampling_memory_);
    queue_.erase(place);
    ++running_;
  }
}

/// Returns the texts that have no place in the next step: the last ones of the users who have the most.
std::vector<const Scheduler::RunningSequence*> Scheduler::Paused() const {
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
std::size_t Scheduler::TokensOf(std::span<const StepShare> shares) {
  std::size_t tokens = 0;
  for (const StepShare& share : shares) tokens += share.text->generates() ? 1 + share.drafts.size() : 0;
  return tokens;
}

/// Chooses who computes how many tokens: one for each text that generates, and for prompts equal parts of the rest.
std::vector<Scheduler::StepShare> Scheduler::ChooseShares() {
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
      text.blocks = pool_.Share(text.tokens, text.root());
      text.stored = text.blocks.size() * static_cast<std::size_t>(pool_.block_tokens());
      done_.shared_tokens += text.stored;
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
void Scheduler::DividePrompts(std::vector<RunningSequence*> reading, std::size_t left, std::vector<StepShare>& shares) {
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
    const std::size_t part = std::max<std::size_t>(1, left / (reading.size() - i));
    shares.push_back({reading[i], reading[i]->stored, std::min(part, reading[i]->left()), {}, {}});
    left -= shares.back().count;
  }
}

/// Takes the blocks that the shares need, those of the texts that came first before others. Returns the shares that
/// have them. A text that gives up its blocks has no share in this step.
std::vector<Scheduler::StepShare> Scheduler::GiveBlocks(std::vector<StepShare> shares) {
  std::vector<StepShare> given;
  for (RunningSequence& text : sequences_) {
    const auto share = std::ranges::find(shares, &text, &StepShare::text);
    if (share == shares.end()) continue;
    if (share->past != text.stored) {
      // The text was pre-empted above. Its share was to follow tokens that the cache no longer has.
      done_.preempted_drafts += share->drafts.size();
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

bool Scheduler::TakeBlocks(RunningSequence& text, std::size_t count) {
  const auto tokens = static_cast<std::size_t>(pool_.block_tokens());
  while (text.blocks.size() * tokens < text.stored + count) {
    const std::int32_t block = pool_.Take();
    if (block < 0) return false;
    text.blocks.push_back(block);
  }
  return true;
}

void Scheduler::Preempt(RunningSequence& text) {
  if (text.stored > 0) ++done_.preemptions;
  pool_.Release(text.blocks);
  text.blocks.clear();
  text.stored = 0;
}

void Scheduler::Compute(std::span<const StepShare> shares) {
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
                     .logits = share.count == text.left() ? 1 + static_cast<int>(share.drafts.size()) : 0,
                     .adapter = text.adapter()});
  }
  const std::size_t waiting = TokensOf(shares);
  const TimePoint began = clock_.Now();
  const auto logits = model_.Step(parts);
  if (logits) pace_.Note(waiting, tokens - waiting, clock_.Now() - began);
  if (!logits && shares.size() > 1) {
    for (const StepShare& share : shares) Compute({&share, 1});
    return;
  }
  if (!logits) return End(*shares[0].text, std::unexpected(logits.error()));
  ++done_.steps;
  std::size_t next = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const std::size_t size = static_cast<std::size_t>(parts[i].logits) * static_cast<std::size_t>(model_.vocab_size());
    done_.tokens += parts[i].tokens.size();
    Advance(shares[i], logits->subspan(next, size));
    next += size;
  }
}

/// Draws a token from each row of `logits`, as long as the token before was guessed. Notes what was stored.
void Scheduler::Advance(const StepShare& share, std::span<const float> logits) {
  RunningSequence& text = *share.text;
  const std::size_t first_stored = text.stored, width = static_cast<std::size_t>(model_.vocab_size());
  const GenerationRequest& request = text.state->request;
  text.stored += share.count;
  std::optional<Result<FinishReason>> end;
  std::size_t right = 0;  // guesses
  for (std::size_t row = 0; row * width < logits.size() && !end; ++row) {
    SampledToken sampled = text.sampler.Sample(logits.subspan(row * width, width));
    const TokenId token = sampled.token;
    if (token == tokenizer::kNoToken) {
      end = Fail(Code::kInternal,
                 "no token can follow: the model's scores are not numbers, or no token fits what the text must be");
    } else if (std::ranges::find(request.ends, token) != request.ends.end()) {
      end = FinishReason::kEnd;
    } else {
      text.state->Add(std::move(sampled));
      text.tokens.push_back(token);
      ++text.uncharged;
      if (++text.made == request.max_tokens) end = FinishReason::kLength;
    }
    if (row == share.drafts.size() || share.drafts[row] != token) break;
    ++right;
    ++text.stored;
  }
  done_.drafted_tokens += share.drafts.size();
  done_.accepted_tokens += right;
  // Texts that repeat themselves get longer guesses, others shorter ones.
  if (!share.drafts.empty()) text.drafts = right == share.drafts.size() ? text.drafts + 2 : right + 1;
  const auto block_tokens = static_cast<std::size_t>(pool_.block_tokens());
  const std::size_t known = std::min(text.stored, text.tokens.size());
  for (std::size_t full = first_stored / block_tokens; (full + 1) * block_tokens <= known; ++full) {
    pool_.Publish(text.tokens, std::span(text.blocks).first(full + 1), text.root());
  }
  if (end) End(text, *std::move(end));
}

/// The text leaves the batch: RemoveEnded() removes it.
void Scheduler::End(RunningSequence& text, Result<FinishReason> how) {
  pool_.Release(text.blocks);
  text.blocks.clear();
  if (drafter_) drafter_->Release(text.draft);
  text.has_ended = true;
  text.result = std::move(how);
}

/// Removes texts that have ended, and tells their consumers.
void Scheduler::RemoveEnded() {
  std::vector<std::shared_ptr<Generation::State>> ended;
  std::vector<Result<FinishReason>> how;
  std::map<int, int> made;
  for (RunningSequence& text : sequences_) made[text.state->request.user] += std::exchange(text.uncharged, 0);
  for (auto text = sequences_.begin(); text != sequences_.end();) {
    if (!text->has_ended) {
      ++text;
      continue;
    }
    ended.push_back(std::move(text->state));
    how.push_back(std::move(text->result));
    text = sequences_.erase(text);
  }
  done_.used_blocks = pool_.used();
  {
    MutexLock lock(mutex_);
    running_ -= static_cast<int>(ended.size());
    for (const auto& state : ended) --users_[state->request.user].running;
    for (const auto& [user, tokens] : made) users_[user].computed += static_cast<std::uint64_t>(tokens);
    counters_ = done_;
  }
  // A consumer that has seen the end finds room for its next request.
  for (std::size_t i = 0; i < ended.size(); ++i) ended[i]->End(std::move(how[i]));
}

}  // namespace millrace::serve
