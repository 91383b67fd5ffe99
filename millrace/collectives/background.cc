#include "millrace/collectives/background.h"

#include <algorithm>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/collectives/operation_checks.h"
#include "millrace/trace/recorder.h"

namespace millrace::collectives {

GroupMembers GroupMembers::Part(std::span<const int> members) const {
  GroupMembers part{.rank = static_cast<int>(std::ranges::find(members, rank) - members.begin())};
  for (const int member : members) part.in_job.push_back(in_job[static_cast<std::size_t>(member)]);
  return part;
}

GroupMembers GroupMembers::Job(int rank, int ranks) {
  GroupMembers job{.rank = rank, .in_job = std::vector<int>(static_cast<std::size_t>(ranks))};
  std::iota(job.in_job.begin(), job.in_job.end(), 0);
  return job;
}

namespace {

/// Operations that a lane holds before Start…() blocks: far more than the buckets of a step, and a bound on memory if a
/// caller never waits.
constexpr std::size_t kLaneOperations = 4096;

/// Runs an operation, which may need scratch memory. Errors: its own; kResourceExhausted.
template <class Run>
Status RunWithMemory(Run& run) {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    return Fail(Code::kResourceExhausted, "a collective: out of memory");
  }
}

/// The outcome of one operation. Thread-safe.
class Completion {
 public:
  void Finish(Status status) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    status_ = std::move(status);
    finished_.NotifyAll();
  }
  Status Wait() MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!status_) finished_.Wait(mutex_);
    return *status_;
  }

 private:
  Mutex mutex_;
  CondVar finished_;
  std::optional<Status> status_ MR_GUARDED_BY(mutex_);
};

class BackgroundOperation final : public Collective::Pending {
 public:
  BackgroundOperation(const char* name, std::shared_ptr<Completion> completion)
      : name_(name), completion_(std::move(completion)) {}
  ~BackgroundOperation() override { (void)completion_->Wait(); }
  Status Wait() override {
    trace::Span span("wait", trace::Category::kCommunication);
    if (span) span.SetArguments({{"for", name_}});
    return completion_->Wait();
  }

 private:
  const char* const name_;
  const std::shared_ptr<Completion> completion_;
};

class FinishedOperation final : public Collective::Pending {
 public:
  explicit FinishedOperation(Status status) : status_(std::move(status)) {}
  Status Wait() override { return status_; }

 private:
  const Status status_;
};

/// Transports move memory of the host.
Status CheckOnHost(const char* operation, const Elements& elements) {
  if (elements.device.is_host()) return {};
  return Fail(Code::kInvalidArgument, "{}: the elements are on {}, not in the memory of the host", operation,
              elements.device.ToText());
}

/// What they add: combine.h.
Status CheckAddedOnHost(const char* operation, const Elements& elements) {
  if (elements.type != ElementType::kFloat16) return CheckOnHost(operation, elements);
  return Fail(Code::kInvalidArgument, "{}: no reduction of {} on the host", operation, NameOf(elements.type));
}

class BackgroundCollective final : public Collective {
 public:
  BackgroundCollective(std::unique_ptr<Transport> transport, std::string name)
      : name_(std::move(name)), transport_(std::move(transport)), collectives_(name_, 1, kLaneOperations) {}
  ~BackgroundCollective() override {
    MutexLock lock(mutex_);
    const bool busy = unfinished_ > 0;
    lock.Unlock();
    // Peers read the name of this rank in front of it.
    if (busy) Abandon(Error(Code::kUnavailable, "this rank destroyed its group"));
  }

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }

  Operation StartAllReduce(Elements elements, Reduction reduction) override {
    Status valid = CheckAllReducible(elements, reduction);
    if (valid) valid = CheckAddedOnHost("all-reduce", elements);
    TracedOperation label = Label("all-reduce", elements);
    return Start(collectives_, std::move(label), std::move(valid), [this, elements = std::move(elements), reduction] {
      return transport_->AllReduce(elements, reduction);
    });
  }
  Operation StartAllGather(Elements all, Elements mine) override {
    Status valid = CheckParts("all-gather", all, mine, size());
    if (valid) valid = CheckOnHost("all-gather", all);
    TracedOperation label = Label("all-gather", all);
    return Start(collectives_, std::move(label), std::move(valid),
                 [this, all = std::move(all), mine = std::move(mine)] { return transport_->AllGather(all, mine); });
  }
  Operation StartReduceScatter(Elements mine, Elements all, Reduction reduction) override {
    Status valid = CheckParts("reduce-scatter", all, mine, size());
    if (valid) valid = CheckReducible("reduce-scatter", mine, reduction);
    if (valid) valid = CheckAddedOnHost("reduce-scatter", all);
    TracedOperation label = Label("reduce-scatter", all);
    return Start(collectives_, std::move(label), std::move(valid),
                 [this, mine = std::move(mine), all = std::move(all), reduction] {
                   return transport_->ReduceScatter(mine, all, reduction);
                 });
  }
  Operation StartBroadcast(Elements elements, int root) override {
    Status valid = CheckElements("broadcast", elements);
    if (valid) valid = CheckOnHost("broadcast", elements);
    if (valid && root != rank()) valid = CheckPeer("broadcast", root, rank(), size());
    TracedOperation label = Label("broadcast", elements);
    return Start(collectives_, std::move(label), std::move(valid),
                 [this, elements = std::move(elements), root] { return transport_->Broadcast(elements, root); });
  }
  Operation StartSend(Elements elements, int to) override {
    Status valid = CheckElements("send", elements);
    if (valid) valid = CheckOnHost("send", elements);
    if (valid) valid = CheckPeer("send", to, rank(), size());
    TracedOperation label = Label("send", elements, to);
    return Start(Lane(sends_, "send", to), std::move(label), std::move(valid),
                 [this, elements = std::move(elements), to] { return transport_->Send(elements, to); });
  }
  Operation StartReceive(Elements elements, int from) override {
    Status valid = CheckElements("receive", elements);
    if (valid) valid = CheckOnHost("receive", elements);
    if (valid) valid = CheckPeer("receive", from, rank(), size());
    TracedOperation label = Label("receive", elements, from);
    return Start(Lane(receives_, "recv", from), std::move(label), std::move(valid),
                 [this, elements = std::move(elements), from] { return transport_->Receive(elements, from); });
  }

  void Abort(const Error& cause) override { Abandon(cause); }

  Result<std::unique_ptr<Collective>> Split(std::string name, std::span<const int> members) override {
    MR_TRY(CheckSplit(name, members, rank(), size()));
    if (members.size() == 1) return MakeSoloCollective();
    MR_TRY(Failure());
    return transport_->Split(name, members);
  }

 private:
  using Lanes = std::map<int, ThreadPool>;

  /// An operation as a trace shows it.
  struct TracedOperation {
    const char* name = "";
    trace::Recorder* recorder = nullptr;  ///< null: it is not shown
    Json arguments;
  };

  ThreadPool& Lane(Lanes& lanes, const char* operation, int peer) {
    return lanes.try_emplace(peer, fmt::format("{} {}-{}", name_, operation, peer), 1, kLaneOperations).first->second;
  }

  /// Describes an operation that the calling thread starts. `peer`: of a message.
  TracedOperation Label(const char* operation, const Elements& elements, std::optional<int> peer = {}) const {
    TracedOperation label{.name = operation, .recorder = trace::CurrentRecorder(), .arguments = {}};
    if (label.recorder == nullptr || elements.fault != nullptr) return label;
    label.arguments = {{"group", name_}, {"ranks", size()}, {"bytes", elements.bytes()}};
    if (peer) label.arguments["peer"] = *peer;
    return label;
  }

  template <class Run>
  Operation Start(ThreadPool& lane, TracedOperation label, Status valid, Run run) {
    const char* const name = label.name;
    auto completion = std::make_shared<Completion>();
    {
      MutexLock lock(mutex_);
      ++unfinished_;
    }
    lane.Submit([this, completion, label = std::move(label), valid = std::move(valid), run = std::move(run)]() mutable {
      Status status = Failure();
      if (status) status = valid;
      // The allocation of scratch memory throws.
      if (status) {
        trace::Span span(label.name, trace::Category::kCommunication, label.recorder);
        span.SetArguments(std::move(label.arguments));
        status = RunWithMemory(run);
      }
      if (!status) {
        Abandon(status.error());
        status = Failure();  // what went wrong first: this error may be what came of it
      }
      {
        MutexLock lock(mutex_);
        --unfinished_;
      }
      completion->Finish(std::move(status));
    });
    return std::make_unique<BackgroundOperation>(name, std::move(completion));
  }

  Status Failure() MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return failure_;
  }

  /// Makes all later operations fail with the first `error`.
  void Abandon(const Error& error) MR_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (!failure_) return;
      failure_ = Fail(error);
    }
    transport_->Abort(error);
  }

  const std::string name_;
  const std::unique_ptr<Transport> transport_;
  Mutex mutex_;
  Status failure_ MR_GUARDED_BY(mutex_);
  std::size_t unfinished_ MR_GUARDED_BY(mutex_) = 0;
  // Destroyed first: their threads use the rest.
  ThreadPool collectives_;
  Lanes sends_, receives_;
};

class SoloCollective final : public Collective {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Operation StartAllReduce(Elements elements, Reduction reduction) override {
    return std::make_unique<FinishedOperation>(CheckAllReducible(elements, reduction));
  }
  Operation StartAllGather(Elements all, Elements mine) override {
    return std::make_unique<FinishedOperation>(Copy("all-gather", all, mine, all, mine));
  }
  Operation StartReduceScatter(Elements mine, Elements all, Reduction reduction) override {
    Status done = CheckReducible("reduce-scatter", mine, reduction);
    if (done && reduction == Reduction::kAddSum) {
      done = CheckParts("reduce-scatter", all, mine, 1);
      if (done) done = AddElements(mine, all);
    } else if (done) {
      done = Copy("reduce-scatter", all, mine, mine, all);
    }
    return std::make_unique<FinishedOperation>(std::move(done));
  }
  Operation StartBroadcast(Elements elements, int root) override {
    Status valid = CheckElements("broadcast", elements);
    if (valid && root != 0) valid = CheckPeer("broadcast", root, 0, 1);
    return std::make_unique<FinishedOperation>(std::move(valid));
  }
  Operation StartSend(Elements, int to) override {
    return std::make_unique<FinishedOperation>(CheckPeer("send", to, 0, 1));
  }
  Operation StartReceive(Elements, int from) override {
    return std::make_unique<FinishedOperation>(CheckPeer("receive", from, 0, 1));
  }
  void Abort(const Error&) override {}  // nobody waits, and nothing is under way
  Result<std::unique_ptr<Collective>> Split(std::string name, std::span<const int> members) override {
    if (members.size() != 1 || members[0] != 0) {
      return Fail(Code::kInvalidArgument, "split {}: the group has only rank 0", name);
    }
    return MakeSoloCollective();
  }

 private:
  static Status Copy(const char* operation, const Elements& all, const Elements& mine, const Elements& to,
                     const Elements& from) {
    MR_TRY(CheckParts(operation, all, mine, 1));
    if (to.data != from.data) MR_TRY(CopyElements(to, from));
    return {};
  }
};

}  // namespace

std::unique_ptr<Collective> MakeCollective(std::unique_ptr<Transport> transport, std::string name) {
  return std::make_unique<BackgroundCollective>(std::move(transport), std::move(name));
}

std::unique_ptr<Collective> MakeSoloCollective() { return std::make_unique<SoloCollective>(); }

}  // namespace millrace::collectives
