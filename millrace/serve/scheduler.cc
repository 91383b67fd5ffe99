#include "millrace/serve/scheduler.h"

#include <algorithm>

namespace millrace::serve {

struct Generation::State {
  explicit State(GenerationRequest r) : request(std::move(r)), tokens(static_cast<std::size_t>(request.max_tokens)) {}

  void End(Result<FinishReason> how) {
    {
      MutexLock lock(mutex);
      result = std::move(how);
    }
    tokens.Close();
  }

  const GenerationRequest request;
  std::atomic<bool> cancelled{false};
  Channel<TokenId> tokens;  ///< has room for all: a slow consumer does not hold the model up
  Mutex mutex;
  Result<FinishReason> result MR_GUARDED_BY(mutex) = Fail(Code::kCancelled, "the generation has not ended");
};

Generation::~Generation() {
  if (state_) Cancel();
}

void Generation::Cancel() { state_->cancelled.store(true, std::memory_order_relaxed); }

std::optional<TokenId> Generation::Next(std::stop_token stop) { return state_->tokens.Pop(std::move(stop)); }

Result<FinishReason> Generation::result() const {
  MutexLock lock(state_->mutex);
  return state_->result;
}

const GenerationRequest& Generation::request() const { return state_->request; }

Scheduler::Scheduler(LanguageModel& model, Options options) : model_(model), options_(options) {
  scope_.Spawn("generate", [this](std::stop_token stop) { Run(std::move(stop)); });
}

Scheduler::~Scheduler() {
  scope_.RequestStop();
  scope_.Join();
  MutexLock lock(mutex_);
  for (auto& generation : queue_) generation->End(Fail(Code::kCancelled, "the server is stopping"));
}

int Scheduler::waiting() const {
  MutexLock lock(mutex_);
  return static_cast<int>(queue_.size());
}

Result<std::vector<Generation>> Scheduler::Submit(std::vector<GenerationRequest> requests) {
  const int most = options_.max_admitted, wanted = static_cast<int>(requests.size());
  if (wanted > most)
    return Fail(Code::kInvalidArgument, "{} prompts in one request; this server takes {}", wanted, most);
  for (const GenerationRequest& request : requests) {
    std::size_t room = static_cast<std::size_t>(model_.context_length());
    if (request.prompt.empty() || request.max_tokens < 1 || request.prompt.size() >= room ||
        static_cast<std::size_t>(request.max_tokens) > room - request.prompt.size()) {
      return Fail(Code::kInvalidArgument, "{} prompt tokens and {} more do not fit the model's context of {}",
                  request.prompt.size(), request.max_tokens, room);
    }
  }
  MutexLock lock(mutex_);
  int present = running() + static_cast<int>(queue_.size());
  if (present + wanted > most)
    return Fail(Code::kThrottled, "{} generations are under way or waiting; try again", present);
  std::vector<Generation> handles;
  for (GenerationRequest& request : requests) {
    auto state = std::make_shared<Generation::State>(std::move(request));
    queue_.push_back(state);
    handles.push_back(Generation(std::move(state)));
  }
  lock.Unlock();
  arrived_.NotifyOne();
  return handles;
}

void Scheduler::Run(std::stop_token stop) {
  for (;;) {
    std::shared_ptr<Generation::State> next;
    {
      MutexLock lock(mutex_);
      arrived_.Wait(mutex_, stop, [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return !queue_.empty(); });
      if (stop.stop_requested()) return;
      next = std::move(queue_.front());
      queue_.pop_front();
      running_.store(1, std::memory_order_relaxed);
    }
    auto result = Generate(*next, stop);
    running_.store(0, std::memory_order_relaxed);
    next->End(std::move(result));
  }
}

Result<FinishReason> Scheduler::Generate(Generation::State& generation, std::stop_token stop) {
  const GenerationRequest& request = generation.request;
  if (generation.cancelled) return Fail(Code::kCancelled, "the client has gone");
  auto sequence = MR_TRY(model_.NewSequence(static_cast<int>(request.prompt.size()) + request.max_tokens));
  std::span<const float> logits = MR_TRY(ReadPrompt(*sequence, generation, stop));
  Sampler sampler(request.sampling);
  for (int made = 0;;) {
    TokenId token = sampler.Sample(logits);
    if (token == tokenizer::kNoToken) return Fail(Code::kInternal, "the model's scores are not numbers");
    if (token == request.end) return FinishReason::kEnd;
    generation.tokens.Push(token);
    if (++made == request.max_tokens) return FinishReason::kLength;
    if (generation.cancelled || stop.stop_requested()) return Fail(Code::kCancelled, "the generation was cut short");
    logits = MR_TRY(sequence->Append(std::span(&token, 1)));
  }
}

Result<std::span<const float>> Scheduler::ReadPrompt(Sequence& sequence, const Generation::State& generation,
                                                     std::stop_token stop) {
  std::span<const TokenId> left(generation.request.prompt);
  for (;;) {
    auto chunk = left.first(std::min(left.size(), static_cast<std::size_t>(options_.prompt_chunk)));
    left = left.subspan(chunk.size());
    std::span<const float> logits = MR_TRY(sequence.Append(chunk));
    if (left.empty()) return logits;
    if (generation.cancelled || stop.stop_requested()) return Fail(Code::kCancelled, "the generation was cut short");
  }
}

}  // namespace millrace::serve
