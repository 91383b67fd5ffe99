#include "millrace/collectives/nccl/nccl_group.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/collectives/nccl/communicator.h"
#include "millrace/collectives/operation_checks.h"
#include "millrace/collectives/operation_label.h"
#include "millrace/collectives/transport.h"
#include "millrace/trace/recorder.h"

namespace millrace::collectives {
namespace {

/// Operations that a lane holds before Start…() blocks.
constexpr std::size_t kQueuedOperations = 4096;
/// Time between two signs of life.
constexpr Duration kLongestBeat = std::chrono::milliseconds(250);
/// How often operations under way are looked at.
constexpr Duration kWatch = std::chrono::milliseconds(20);
/// How long operations may still take when a rank has left: its own are done.
constexpr Duration kPartingTime = std::chrono::milliseconds(500);

/// What a rank tells another one of a message before it.
struct Announcement {
  OperationLabel label;
  NcclId id;  ///< of the communicator for messages of this direction; zeros after the first
};

NcclType TypeOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return NcclType::kFloat32;
    case ElementType::kBFloat16:
      return NcclType::kBfloat16;
    case ElementType::kFloat16:
      return NcclType::kFloat16;
    case ElementType::kFloat64:
      return NcclType::kFloat64;
    case ElementType::kInt64:
      return NcclType::kInt64;
    case ElementType::kInt32:
      return NcclType::kInt32;
    case ElementType::kUint8:
    case ElementType::kBytes:
      return NcclType::kUint8;
  }
  std::unreachable();
}
NcclReduction ReductionOf(Reduction reduction) {
  if (reduction == Reduction::kMax) return NcclReduction::kMax;
  return reduction == Reduction::kMean ? NcclReduction::kMean : NcclReduction::kSum;
}

/// Elements as NCCL takes them.
struct NcclElements {
  void* data;
  std::size_t count;
  NcclType type;
  static NcclElements Of(const Elements& elements) {
    return {elements.data, static_cast<std::size_t>(elements.count), TypeOf(elements.type)};
  }
};

/// The first failure of a group. Thread-safe. Outlives the group with its operations.
class Failure {
 public:
  Status Get() const MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return status_;
  }
  /// Returns whether it is the first one.
  bool Set(const Error& error) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!status_) return false;
    status_ = Fail(error);
    return true;
  }

 private:
  mutable Mutex mutex_;
  Status status_ MR_GUARDED_BY(mutex_);
};

/// An operation on its way to the device. Thread-safe.
class Launch {
 public:
  void Finish(Status status, std::shared_ptr<const StreamPoint> end) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    status_ = std::move(status);
    end_ = std::move(end);
    finished_.NotifyAll();
  }
  /// Waits until the device has it, and makes what the caller gives the device next wait for its end.
  Status Hold() MR_EXCLUDES(mutex_) {
    std::shared_ptr<const StreamPoint> end;
    {
      MutexLock lock(mutex_);
      while (!status_) finished_.Wait(mutex_);
      MR_TRY(*status_);
      end = end_;
    }
    return end ? end->HoldCurrent() : Status();
  }

 private:
  Mutex mutex_;
  CondVar finished_;
  std::optional<Status> status_ MR_GUARDED_BY(mutex_);
  std::shared_ptr<const StreamPoint> end_ MR_GUARDED_BY(mutex_);
};

class NcclOperation final : public Collective::Pending {
 public:
  /// What `used` views lives until the caller's stream waits for the operation. `sum` is then added to `into`, if any.
  NcclOperation(const char* name, std::shared_ptr<Launch> launch, std::shared_ptr<const Failure> failure,
                std::vector<Elements> used, std::optional<Elements> into = {}, Elements sum = {})
      : name_(name),
        launch_(std::move(launch)),
        failure_(std::move(failure)),
        used_(std::move(used)),
        into_(std::move(into)),
        sum_(std::move(sum)) {}
  ~NcclOperation() override { (void)Wait(); }

  Status Wait() override {
    trace::Span span("wait", trace::Category::kCommunication);
    if (span) span.SetArguments({{"for", name_}});
    MR_TRY(launch_->Hold());
    MR_TRY(failure_->Get());
    const std::optional<Elements> into = std::exchange(into_, std::nullopt);
    return into ? AddElements(*into, sum_) : Status();
  }

 private:
  const char* const name_;
  const std::shared_ptr<Launch> launch_;
  const std::shared_ptr<const Failure> failure_;
  const std::vector<Elements> used_;
  std::optional<Elements> into_;
  const Elements sum_;
};

class NcclGroup final : public Collective {
 public:
  NcclGroup(std::unique_ptr<Collective> inner, NcclOptions options)
      : inner_(std::move(inner)), options_(std::move(options)), lane_("nccl", 1, kQueuedOperations) {}
  ~NcclGroup() override {
    MutexLock lock(mutex_);
    const bool busy = unlaunched_ > 0;
    // The device must not lose what its operations use.
    while (!busy && failure_->Get() && !under_way_.empty()) ended_.Wait(mutex_);
    lock.Unlock();
    if (busy) Abandon(Error(Code::kUnavailable, "this rank destroyed its group"));
    watch_.request_stop();
    if (alarm_) alarm_->Abort(Error(Code::kUnavailable, "this rank has left the group"));
  }

  /// Connects the ranks. Call it once, first.
  Status Connect() {
    MR_TRY(options_.device->UseHere());
    labels_ = MR_TRY(inner_->Duplicate("nccl labels"));
    messages_ = MR_TRY(inner_->Duplicate("nccl messages"));
    alarm_ = MR_TRY(inner_->Duplicate("nccl alarm"));
    watch_ = std::jthread([this](std::stop_token stop) { Watch(std::move(stop)); });
    // On the lane, where the watch sees that something waits for the other ranks.
    const auto connected = Submit(lane_, {}, [this](const StreamPoint&) -> Result<std::shared_ptr<const StreamPoint>> {
      NcclId id{};
      if (rank() == 0) id = MR_TRY(NewId());
      MR_TRY(labels_->Broadcast(Elements::BytesOf(id), 0));
      operations_.communicator = MR_TRY(NewCommunicator(id, size(), rank()));
      operations_.stream = MR_TRY(options_.device->NewStream());
      return nullptr;
    });
    return connected->Hold();
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  Operation StartAllReduce(Elements elements, Reduction reduction) override {
    if (!Takes(elements)) return inner_->StartAllReduce(std::move(elements), reduction);
    auto launch = Start(CheckAllReducible(elements, reduction), [&] {
      return Work{OperationKind::kAllReduce, elements, static_cast<std::uint32_t>(reduction),
                  [data = NcclElements::Of(elements), reduction](NcclApi& api, NcclHandle with, void* stream) {
                    return api.AllReduce(data.data, data.count, data.type, ReductionOf(reduction), with, stream);
                  }};
    });
    return Pend("all-reduce", std::move(launch), {std::move(elements)});
  }
  Operation StartAllGather(Elements all, Elements mine) override {
    if (!Takes(all) && !Takes(mine)) return inner_->StartAllGather(std::move(all), std::move(mine));
    auto launch = Start(CheckParts("all-gather", all, mine, size()), [&] {
      return Work{OperationKind::kAllGather, mine, 0,
                  [from = NcclElements::Of(mine), to = all.data](NcclApi& api, NcclHandle with, void* stream) {
                    return api.AllGather(from.data, to, from.count, from.type, with, stream);
                  }};
    });
    return Pend("all-gather", std::move(launch), {std::move(all), std::move(mine)});
  }
  Operation StartReduceScatter(Elements mine, Elements all, Reduction reduction) override {
    if (!Takes(all) && !Takes(mine)) return inner_->StartReduceScatter(std::move(mine), std::move(all), reduction);
    Status valid = CheckParts("reduce-scatter", all, mine, size());
    if (valid) valid = CheckReducible("reduce-scatter", mine, reduction);
    // NCCL overwrites. A sum that is added has a place of its own, until the caller waits.
    const bool adds = valid && reduction == Reduction::kAddSum;
    Elements sum = mine;
    if (adds) {
      auto made = NewElements(mine);
      if (made) {
        sum = *std::move(made);
      } else {
        valid = Fail(made.error());
      }
    }
    auto launch = Start(std::move(valid), [&] {
      return Work{
          OperationKind::kReduceScatter, mine, static_cast<std::uint32_t>(reduction),
          [from = all.data, to = NcclElements::Of(sum), reduction](NcclApi& api, NcclHandle with, void* stream) {
            return api.ReduceScatter(from, to.data, to.count, to.type, ReductionOf(reduction), with, stream);
          }};
    });
    return std::make_unique<NcclOperation>("reduce-scatter", std::move(launch), failure_,
                                           std::vector<Elements>{std::move(all), sum},
                                           adds ? std::optional(mine) : std::nullopt, sum);
  }
  Operation StartBroadcast(Elements elements, int root) override {
    if (!Takes(elements)) return inner_->StartBroadcast(std::move(elements), root);
    Status valid = CheckElements("broadcast", elements);
    if (valid && root != rank()) valid = CheckPeer("broadcast", root, rank(), size());
    auto launch = Start(std::move(valid), [&] {
      return Work{OperationKind::kBroadcast, elements, static_cast<std::uint32_t>(root),
                  [data = NcclElements::Of(elements), root](NcclApi& api, NcclHandle with, void* stream) {
                    return api.Broadcast(data.data, data.count, data.type, root, with, stream);
                  }};
    });
    return Pend("broadcast", std::move(launch), {std::move(elements)});
  }
  Operation StartSend(Elements elements, int to) override {
    if (!Takes(elements)) return inner_->StartSend(std::move(elements), to);
    Status valid = CheckElements("send", elements);
    if (valid) valid = CheckPeer("send", to, rank(), size());
    auto launch = StartMessage(std::move(valid), elements, to, /*sends=*/true);
    return Pend("send", std::move(launch), {std::move(elements)});
  }
  Operation StartReceive(Elements elements, int from) override {
    if (!Takes(elements)) return inner_->StartReceive(std::move(elements), from);
    Status valid = CheckElements("receive", elements);
    if (valid) valid = CheckPeer("receive", from, rank(), size());
    auto launch = StartMessage(std::move(valid), elements, from, /*sends=*/false);
    return Pend("receive", std::move(launch), {std::move(elements)});
  }

  void Abort(const Error& cause) override { Abandon(cause); }

  Result<std::unique_ptr<Collective>> Split(std::string name, std::span<const int> members) override {
    MR_TRY(CheckSplit(name, members, rank(), size()));
    MR_TRY(failure_->Get());
    std::unique_ptr<Collective> part = MR_TRY(inner_->Split(std::move(name), members));
    NcclOptions options = options_;
    options.in_job = GroupMembers{.rank = rank(), .in_job = options_.in_job}.Part(members).in_job;
    return MakeNcclGroup(std::move(part), std::move(options));
  }

 private:
  using Give = std::function<NcclResult(NcclApi& api, NcclHandle with, void* stream)>;

  /// An operation of all ranks.
  struct Work {
    Work(OperationKind kind, const Elements& elements, std::uint32_t detail, Give give)
        : label(LabelOf(kind, elements, detail)), is_empty(elements.count == 0), give(std::move(give)) {}
    OperationLabel label;
    bool is_empty;
    Give give;
  };

  /// Where operations of one kind go, in order. Only its lane uses it.
  struct Channel {
    std::shared_ptr<Communicator> communicator;
    std::unique_ptr<SideStream> stream;
  };
  /// The messages to or from one peer.
  struct MessageLane {
    explicit MessageLane(const char* name) : pool(name, 1, kQueuedOperations) {}
    Channel channel;
    ThreadPool pool;  ///< its thread uses the channel
  };
  struct UnderWay {
    std::shared_ptr<const StreamPoint> end;
    TimePoint since;
  };

  int NameOf(int member) const { return options_.in_job[static_cast<std::size_t>(member)]; }
  bool Takes(const Elements& elements) const { return elements.fault == nullptr && options_.takes(elements); }
  Operation Pend(const char* name, std::shared_ptr<Launch> launch, std::vector<Elements> used) const {
    return std::make_unique<NcclOperation>(name, std::move(launch), failure_, std::move(used));
  }

  /// Runs `run` on a lane: it gives the device an operation that begins where the caller's stream is now.
  template <class Run>
  std::shared_ptr<Launch> Submit(ThreadPool& lane, Status valid, Run run) {
    auto launch = std::make_shared<Launch>();
    {
      MutexLock lock(mutex_);
      ++unlaunched_;
    }
    std::shared_ptr<const StreamPoint> ready;
    if (valid) {
      auto marked = options_.device->MarkCurrent();
      if (marked) {
        ready = *std::move(marked);
      } else {
        valid = Fail(marked.error());
      }
    }
    lane.Submit([this, launch, ready = std::move(ready), valid = std::move(valid), run = std::move(run)]() mutable {
      std::shared_ptr<const StreamPoint> end;
      Status status = failure_->Get();
      if (status) status = valid;
      if (status) {
        const auto on_device = [&]() -> Status {
          MR_TRY(options_.device->UseHere());
          end = MR_TRY(run(*ready));
          return {};
        };
        status = on_device();
      }
      if (!status) {
        Abandon(status.error());
        status = failure_->Get();  // what went wrong first: this error may be what came of it
      }
      {
        MutexLock lock(mutex_);
        --unlaunched_;
      }
      launch->Finish(std::move(status), std::move(end));
    });
    return launch;
  }

  /// Starts an operation of all ranks. `describe` is called if the arguments are valid.
  template <class Describe>
  std::shared_ptr<Launch> Start(Status valid, Describe describe) {
    std::optional<Work> work;
    if (valid) work = describe();
    return Submit(lane_, std::move(valid),
                  [this, work = std::move(work)](const StreamPoint& ready) { return Agree(*work, ready); });
  }
  Result<std::shared_ptr<const StreamPoint>> Agree(const Work& work, const StreamPoint& ready) {
    // Each rank compares with the one before it, and so with all.
    OperationLabel mine = work.label, theirs{};
    const int next = (rank() + 1) % size(), before = (rank() + size() - 1) % size();
    const Operation send = labels_->StartSend(Elements::BytesOf(mine), next);
    const Operation receive = labels_->StartReceive(Elements::BytesOf(theirs), before);
    MR_TRY(receive->Wait());
    MR_TRY(send->Wait());
    MR_TRY(CompareLabels(mine, NameOf(before), theirs));
    if (work.is_empty) return nullptr;
    return GiveTo(operations_, work.give, ready);
  }

  std::shared_ptr<Launch> StartMessage(Status valid, const Elements& elements, int peer, bool sends) {
    if (!valid) {
      return Submit(lane_, std::move(valid),
                    [](const StreamPoint&) -> Result<std::shared_ptr<const StreamPoint>> { return nullptr; });
    }
    MessageLane& lane = message_lanes_.try_emplace({peer, sends}, sends ? "nccl send" : "nccl recv").first->second;
    const NcclElements data = NcclElements::Of(elements);
    const OperationLabel label = LabelOf(OperationKind::kMessage, elements);
    return Submit(lane.pool, {}, [this, &lane, data, label, peer, sends](const StreamPoint& ready) {
      return Exchange(lane.channel, data, label, peer, sends, ready);
    });
  }
  Result<std::shared_ptr<const StreamPoint>> Exchange(Channel& channel, const NcclElements& data,
                                                      const OperationLabel& label, int peer, bool sends,
                                                      const StreamPoint& ready) {
    // The sender announces each message, and with the first one what the communicator of the two is called.
    Announcement announced{.label = label, .id = {}};
    const bool is_first = channel.communicator == nullptr;
    if (sends && is_first) announced.id = MR_TRY(NewId());
    MR_TRY(Announce(announced, peer, sends));
    if (!sends) MR_TRY(CompareLabels(label, NameOf(peer), announced.label));
    if (is_first) {
      channel.communicator = MR_TRY(NewCommunicator(announced.id, 2, sends ? 0 : 1));
      channel.stream = MR_TRY(options_.device->NewStream());
    }
    if (data.count == 0) return nullptr;
    return GiveTo(
        channel,
        [data, sends](NcclApi& api, NcclHandle with, void* stream) {
          return sends ? api.Send(data.data, data.count, data.type, 1, with, stream)
                       : api.Receive(data.data, data.count, data.type, 0, with, stream);
        },
        ready);
  }
  Status Announce(Announcement& announced, int peer, bool sends) MR_EXCLUDES(messages_mutex_) {
    Operation operation;
    {
      MutexLock lock(messages_mutex_);  // lanes start at any time; a group takes one thread at a time
      operation = sends ? messages_->StartSend(Elements::BytesOf(announced), peer)
                        : messages_->StartReceive(Elements::BytesOf(announced), peer);
    }
    return operation->Wait();
  }

  Result<std::shared_ptr<const StreamPoint>> GiveTo(Channel& channel, const Give& give, const StreamPoint& ready)
      MR_EXCLUDES(mutex_) {
    MR_TRY(channel.stream->WaitFor(ready));
    MR_TRY(channel.communicator->Launch(
        [&](NcclApi& api, NcclHandle with) { return give(api, with, channel.stream->handle()); },
        SystemClock().Now() + options_.timeout));
    std::shared_ptr<const StreamPoint> end = MR_TRY(channel.stream->RecordPoint());
    MutexLock lock(mutex_);
    under_way_.push_back({.end = end, .since = SystemClock().Now()});
    return end;
  }

  Result<NcclId> NewId() const {
    NcclId id{};
    const NcclResult made = options_.api->GetUniqueId(&id);
    if (made != NcclResult::kSuccess) return Fail(Code::kUnavailable, "NCCL: {}", options_.api->Text(made));
    return id;
  }
  Result<std::shared_ptr<Communicator>> NewCommunicator(const NcclId& id, int ranks, int rank) MR_EXCLUDES(mutex_) {
    auto made = MR_TRY(Communicator::Connect(options_.api, id, ranks, rank, SystemClock().Now() + options_.timeout,
                                             [failure = failure_] { return failure->Get(); }));
    MutexLock lock(mutex_);
    communicators_.push_back(made);
    MR_TRY(failure_->Get());  // Abandon() may have looked at the list before
    return made;
  }

  /// Looks after operations that the device has, until the group ends.
  void Watch(std::stop_token stop) MR_EXCLUDES(mutex_) {
    std::jthread signs([this](std::stop_token ends) { ExchangeSignsOfLife(std::move(ends)); });
    while (!stop.stop_requested() && failure_->Get()) {
      // A GPU that has failed says so to everyone who asks it.
      Status looked = options_.device->UseHere();
      if (looked) looked = LookAtOperations();
      if (!looked) Abandon(looked.error());
      SystemClock().SleepFor(kWatch, stop);
    }
    MutexLock lock(mutex_);
    if (!failure_->Get()) under_way_.clear();  // the communicators are aborted
    ended_.NotifyAll();
  }
  void ExchangeSignsOfLife(std::stop_token stop) MR_EXCLUDES(mutex_) {
    const int next = (rank() + 1) % size(), before = (rank() + size() - 1) % size();
    const Duration beat = std::min<Duration>(kLongestBeat, options_.timeout / 4);
    std::uint8_t sent = 0, received = 0;
    while (!stop.stop_requested()) {
      const Operation send = alarm_->StartSend(Elements::BytesOf(sent), next),
                      receive = alarm_->StartReceive(Elements::BytesOf(received), before);
      Status alive = receive->Wait();
      if (alive) alive = send->Wait();
      if (!alive) {
        MutexLock lock(mutex_);
        lost_ = {alive.error(), SystemClock().Now()};
        return;
      }
      SystemClock().SleepFor(beat, stop);
    }
  }
  Status LookAtOperations() MR_EXCLUDES(mutex_) {
    const TimePoint now = SystemClock().Now();
    MutexLock lock(mutex_);
    const std::size_t before = under_way_.size();
    for (auto one = under_way_.begin(); one != under_way_.end();) {
      one = MR_TRY(one->end->IsPassed()) ? under_way_.erase(one) : std::next(one);
    }
    if (under_way_.size() < before) {
      // The operations behind them have waited for their turn: their time begins now.
      for (UnderWay& one : under_way_) one.since = now;
      ended_.NotifyAll();
    }
    for (const auto& communicator : communicators_) MR_TRY(communicator->Look());
    if (!under_way_.empty() && now - under_way_.front().since > options_.timeout) {
      return Fail(Code::kUnavailable, "an exchange of GPUs did not end within {} ms",
                  std::chrono::duration_cast<std::chrono::milliseconds>(options_.timeout).count());
    }
    // Launches wait for others, too: a communicator of two whose peer is lost, for one.
    const bool waits = !under_way_.empty() || unlaunched_ > 0;
    if (lost_ && waits && now - lost_->second > kPartingTime) return Fail(lost_->first);
    return {};
  }

  /// Makes all operations fail, those under way too, with the first `error`, and tells the other ranks.
  void Abandon(const Error& error) MR_EXCLUDES(mutex_) {
    if (!failure_->Set(error)) return;
    for (Collective* group : {labels_.get(), messages_.get(), alarm_.get(), inner_.get()}) {
      if (group != nullptr) group->Abort(error);
    }
    std::vector<std::shared_ptr<Communicator>> communicators;
    {
      MutexLock lock(mutex_);
      communicators = communicators_;
    }
    for (const auto& communicator : communicators) communicator->Abort();
  }

  const std::unique_ptr<Collective> inner_;
  const NcclOptions options_;
  const std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
  std::unique_ptr<Collective> labels_, messages_, alarm_;
  Channel operations_;
  Mutex messages_mutex_;
  Mutex mutex_;
  CondVar ended_;  ///< operations, or the watch
  std::vector<std::shared_ptr<Communicator>> communicators_ MR_GUARDED_BY(mutex_);
  std::deque<UnderWay> under_way_ MR_GUARDED_BY(mutex_);
  std::size_t unlaunched_ MR_GUARDED_BY(mutex_) = 0;
  std::optional<std::pair<Error, TimePoint>> lost_ MR_GUARDED_BY(mutex_);
  std::jthread watch_;
  // Destroyed first: their threads use the rest.
  std::map<std::pair<int, bool>, MessageLane> message_lanes_;
  ThreadPool lane_;
};

}  // namespace

Result<std::unique_ptr<Collective>> MakeNcclGroup(std::unique_ptr<Collective> inner, NcclOptions options) {
  if (inner->size() == 1) return inner;
  if (!options.takes) options.takes = [](const Elements& elements) { return !elements.device.is_host(); };
  if (options.in_job.empty()) options.in_job = GroupMembers::Job(inner->rank(), inner->size()).in_job;
  auto made = std::make_unique<NcclGroup>(std::move(inner), std::move(options));
  MR_TRY(made->Connect());
  return made;
}

}  // namespace millrace::collectives
