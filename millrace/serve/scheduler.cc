#include "millrace/serve/scheduler.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <utility>

namespace millrace::serve {

/// A call of Scheduler::Embed between its caller and the scheduler's thread. Its texts become vectors in their order.
/// The scheduler's thread changes `vectors`, and the caller reads them once `has_ended`.
struct EmbeddingJob {
  const EmbeddingTask task;
  std::vector<std::vector<float>> vectors = {};
  std::atomic<bool> cancelled{false};
  Mutex mutex;
  CondVar changed;
  bool has_ended MR_GUARDED_BY(mutex) = false;
  Status result MR_GUARDED_BY(mutex) = {};

  void End(Status how) {
    MutexLock lock(mutex);
    result = std::move(how);
    has_ended = true;
    lock.Unlock();
    changed.NotifyAll();
  }
};

Scheduler::Scheduler(LanguageModel& model, Options options, LanguageModel* draft, Clock& clock)
    : model_(model), options_(options), clock_(clock), batch_(model, options_, draft, clock) {
  counters_ = batch_.counters();
  scope_.Spawn("generate", [this](std::stop_token stop) { Run(std::move(stop)); });
}

Scheduler::~Scheduler() {
  scope_.RequestStop();
  scope_.Join();
  batch_.Abort(Error(Code::kCancelled, "the server is stopping"));
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
    if (request.prompt.empty() || request.max_tokens < 0 || request.prompt.size() >= room ||
        static_cast<std::size_t>(request.max_tokens) > room - request.prompt.size()) {
      return Fail(Code::kInvalidArgument,
                  "{} prompt tokens and {} more do not fit the {} of {}; shorten the prompt, or lower max_tokens",
                  request.prompt.size(), request.max_tokens, room < context ? "server's KV cache" : "model's context",
                  room);
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
  const auto news = std::make_shared<GenerationNews>();
  for (GenerationRequest& request : requests) {
    ++Arrive(request.user).waiting;
    auto state = std::make_shared<GenerationState>(std::move(request), news);
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
      return Fail(
          Code::kInvalidArgument,
          "a text of {} tokens does not fit the model's context of {}; expected at least 1 and at most that many",
          text.size(), context);
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
      auto late = LateError(job->task.start_by, job->task.end_by, now, /*waits=*/job->vectors.empty());
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
  const std::size_t most = batch_.EmbeddingTokens();
  std::vector<std::span<const TokenId>> texts;
  std::size_t tokens = 0;
  for (std::size_t i = job->vectors.size(); i < all.size(); ++i) {
    if (!texts.empty() && tokens + all[i].size() > most) break;
    tokens += all[i].size();
    texts.emplace_back(all[i]);
  }
  auto vectors = model_.Embed(texts);
  if (vectors) {
    batch_.CountEmbedded(tokens);
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
    batch_.Step();
    RemoveEnded();
  }
}

/// Returns whether there is some, and not that the scheduler stops.
bool Scheduler::WaitForWork(std::stop_token stop) {
  if (batch_.empty()) {
    MutexLock lock(mutex_);
    arrived_.Wait(mutex_, stop,
                  [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return !queue_.empty() || !embeddings_.empty(); });
  }
  return !stop.stop_requested();
}

void Scheduler::DropGoneAndLate() {
  batch_.EndGoneAndLate();
  RemoveEnded();
  const TimePoint now = clock_.Now();
  MutexLock lock(mutex_);
  std::erase_if(queue_, [&](const auto& generation) MR_NO_THREAD_SAFETY_ANALYSIS {
    const GenerationRequest& request = generation->request;
    Result<FinishReason> how = FinishReason::kEnd;
    if (generation->cancelled) {
      how = Fail(Code::kCancelled, "the client has gone");
    } else if (auto late = LateError(request.start_by, request.end_by, now, /*waits=*/true)) {
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
  const bool is_full = batch_.size() >= most;
  std::size_t next = queue_.size();
  const User* best = nullptr;
  for (std::size_t i = 0; i < queue_.size() && batch_.size() < 2 * most; ++i) {
    const User& user = users_.at(queue_[i]->request.user);
    if (is_full && user.running > 0) continue;
    if (best != nullptr && user.computed >= best->computed) continue;
    best = &user;
    next = i;
  }
  return next;
}

/// Lets texts join while the batch and the cache have room for them and their first token.
void Scheduler::Admit() {
  MutexLock lock(mutex_);
  for (std::size_t next = NextInQueue(); next < queue_.size(); next = NextInQueue()) {
    const auto place = queue_.begin() + static_cast<std::ptrdiff_t>(next);
    const std::size_t tokens = (*place)->request.prompt.size();
    if (!batch_.HasRoomFor(tokens)) return;
    User& user = users_[(*place)->request.user];
    --user.waiting;
    ++user.running;
    user.computed += tokens;
    batch_.AddText(std::move(*place));
    queue_.erase(place);
    ++running_;
  }
}

/// Removes texts that have ended, and tells their consumers.
void Scheduler::RemoveEnded() {
  const std::map<int, int> made = batch_.TakeCharges();
  std::vector<RunningBatch::EndedText> ended = batch_.TakeEnded();
  {
    MutexLock lock(mutex_);
    running_ -= static_cast<int>(ended.size());
    for (const auto& text : ended) --users_[text.state->request.user].running;
    for (const auto& [user, tokens] : made) users_[user].computed += static_cast<std::uint64_t>(tokens);
    counters_ = batch_.counters();
  }
  // A consumer that has seen the end finds room for its next request.
  for (auto& text : ended) text.state->End(std::move(text.result));
}

}  // namespace millrace::serve
