#include "millrace/collectives/testing/fake_nccl.h"

#include <ATen/ATen.h>

#include <cstring>
#include <thread>
#include <utility>

#include "millrace/base/hash/random.h"
#include "millrace/base/threads/task_scope.h"

namespace millrace::engine {
namespace {

/// A point that has been passed when Pass() was called.
class FakePoint final : public StreamPoint {
 public:
  void Pass() MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    is_passed_ = true;
    passed_.NotifyAll();
  }
  bool IsPassed() const override MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return is_passed_;
  }
  void HoldCurrent() const override MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!is_passed_) passed_.Wait(mutex_);
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar passed_;
  bool is_passed_ MR_GUARDED_BY(mutex_) = false;
};

class FakeStream final : public SideStream {
 public:
  void* handle() override { return this; }
  void WaitFor(const StreamPoint& point) override {
    // The tests' points of other streams are passed, or are marks of the CPU, which is not late.
    point.HoldCurrent();
  }
  std::shared_ptr<const StreamPoint> Mark() override {
    auto point = std::make_shared<FakePoint>();
    Give([point] { point->Pass(); });
    return point;
  }
  void Give(std::function<void()> work) {
    const std::uint64_t late = random_.Below(40);
    thread_.Submit([late, work = std::move(work)] {
      for (std::uint64_t i = 0; i < late; ++i) std::this_thread::yield();
      work();
    });
  }

 private:
  Random random_{SystemEntropy()};
  ThreadPool thread_{"stream", 1, 1 << 16};
};

at::ScalarType ScalarOf(NcclType type) {
  switch (type) {
    case NcclType::kUint8:
      return at::kByte;
    case NcclType::kInt32:
      return at::kInt;
    case NcclType::kInt64:
      return at::kLong;
    case NcclType::kFloat16:
      return at::kHalf;
    case NcclType::kFloat32:
      return at::kFloat;
    case NcclType::kFloat64:
      return at::kDouble;
    case NcclType::kBfloat16:
      return at::kBFloat16;
  }
  return at::kByte;
}

at::Tensor TensorOf(const void* data, std::size_t count, NcclType type) {
  return at::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(count)}, ScalarOf(type));
}

enum Kind : std::int64_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kMessage };

std::int64_t Number(NcclType type) { return static_cast<std::int64_t>(type); }

}  // namespace

std::unique_ptr<SideStream> FakeStreams::NewStream() { return std::make_unique<FakeStream>(); }
std::shared_ptr<const StreamPoint> FakeStreams::MarkCurrent() {
  auto point = std::make_shared<FakePoint>();
  point->Pass();
  return point;
}

/// The ranks that have the same id.
struct FakeNccl::World {
  struct Meeting {
    std::map<int, Part> parts;
    bool is_done = false;
  };
  int ranks = 0;
  Mutex mutex;
  CondVar changed;
  int joined MR_GUARDED_BY(mutex) = 0;
  std::map<std::uint64_t, Meeting> meetings MR_GUARDED_BY(mutex);
};

struct FakeNccl::Rank {
  std::shared_ptr<World> world;
  int rank;
  std::uint64_t given = 0;  ///< operations so far
  std::shared_ptr<std::atomic<bool>> is_aborted = std::make_shared<std::atomic<bool>>(false);
};

NcclResult FakeNccl::GetUniqueId(NcclId* id) {
  MutexLock lock(mutex_);
  *id = {};
  const std::string text = fmt::format("id {}", ++ids_);
  std::ranges::copy(text, id->bytes.begin());
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::InitRank(NcclHandle* made, int ranks, const NcclId& id, int rank) {
  if (rank == refused_) return static_cast<NcclResult>(2);  // ncclSystemError
  std::shared_ptr<World> world;
  {
    MutexLock lock(mutex_);
    std::weak_ptr<World>& known = worlds_[std::string(id.bytes.data(), id.bytes.size())];
    world = known.lock();
    if (!world) known = world = std::make_shared<World>();
  }
  MutexLock lock(world->mutex);
  world->ranks = ranks;
  ++world->joined;
  *made = new Rank{.world = world, .rank = rank};
  return NcclResult::kInProgress;
}

NcclResult FakeNccl::AsyncState(NcclHandle of, NcclResult* state) {
  World& world = *static_cast<Rank*>(of)->world;
  if (has_lost_) {
    *state = static_cast<NcclResult>(6);  // ncclRemoteError
    return NcclResult::kSuccess;
  }
  MutexLock lock(world.mutex);
  *state = world.joined < world.ranks ? NcclResult::kInProgress : NcclResult::kSuccess;
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::Destroy(NcclHandle of) {
  delete static_cast<Rank*>(of);
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::Abort(NcclHandle of) {
  Rank* const rank = static_cast<Rank*>(of);
  {
    MutexLock lock(rank->world->mutex);
    *rank->is_aborted = true;
    rank->world->changed.NotifyAll();
  }
  return Destroy(of);
}

NcclResult FakeNccl::Give(NcclHandle with, void* stream, Part part,
                          std::function<void(const std::map<int, Part>& parts)> compute) {
  Rank& rank = *static_cast<Rank*>(with);
  static_cast<FakeStream*>(stream)->Give([world = rank.world, me = rank.rank, hangs = rank.rank == hanging_,
                                          turn = rank.given++, is_aborted = rank.is_aborted, part,
                                          compute = std::move(compute)] {
    MutexLock lock(world->mutex);
    if (*is_aborted) return;
    World::Meeting& meeting = world->meetings[turn];
    if (!hangs) meeting.parts.emplace(me, part);
    bool agree = meeting.parts.size() == static_cast<std::size_t>(world->ranks);
    for (const auto& [rank, other] : meeting.parts) agree = agree && other.what == part.what;
    if (agree) {
      compute(meeting.parts);
      meeting.is_done = true;
      world->changed.NotifyAll();
    }
    while (!meeting.is_done && !*is_aborted) world->changed.Wait(world->mutex);
  });
  return NcclResult::kSuccess;
}

namespace {

/// Combines tensors in the order of ranks, in float32 if they have 16 bits.
at::Tensor Combined(const std::vector<at::Tensor>& parts, NcclReduction reduction) {
  const at::ScalarType type = parts.front().scalar_type();
  const bool is_narrow = type == at::kHalf || type == at::kBFloat16;
  const at::ScalarType wide = is_narrow ? at::kFloat : type;
  at::Tensor result = parts.front().to(wide, false, /*copy=*/true);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const at::Tensor next = parts[i].to(wide);
    result = reduction == NcclReduction::kMax ? at::maximum(result, next) : result.add_(next);
  }
  if (reduction == NcclReduction::kMean) result.div_(at::full_like(result, static_cast<double>(parts.size())));
  return result.to(type);
}

}  // namespace

NcclResult FakeNccl::AllReduce(void* data, std::size_t count, NcclType type, NcclReduction reduction, NcclHandle with,
                               void* stream) {
  const auto elements = static_cast<std::int64_t>(count);
  const Part part{
      .what = {kAllReduce, elements, Number(type), static_cast<std::int64_t>(reduction)}, .from = data, .to = data};
  return Give(with, stream, part, [=](const std::map<int, Part>& parts) {
    std::vector<at::Tensor> tensors;
    for (const auto& [rank, each] : parts) tensors.push_back(TensorOf(each.from, count, type));
    const at::Tensor sum = Combined(tensors, reduction);
    for (const at::Tensor& tensor : tensors) tensor.copy_(sum);
  });
}

NcclResult FakeNccl::ReduceScatter(const void* all, void* mine, std::size_t count, NcclType type,
                                   NcclReduction reduction, NcclHandle with, void* stream) {
  const auto elements = static_cast<std::int64_t>(count);
  const Part part{
      .what = {kReduceScatter, elements, Number(type), static_cast<std::int64_t>(reduction)}, .from = all, .to = mine};
  return Give(with, stream, part, [=](const std::map<int, Part>& parts) {
    std::vector<at::Tensor> tensors;
    for (const auto& [rank, each] : parts) tensors.push_back(TensorOf(each.from, count * parts.size(), type));
    const at::Tensor sum = Combined(tensors, reduction);
    for (const auto& [rank, each] : parts)
      TensorOf(each.to, count, type).copy_(sum.narrow(0, rank * elements, elements));
  });
}

NcclResult FakeNccl::AllGather(const void* mine, void* all, std::size_t count, NcclType type, NcclHandle with,
                               void* stream) {
  const Part part{.what = {kAllGather, static_cast<std::int64_t>(count), Number(type), 0}, .from = mine, .to = all};
  return Give(with, stream, part, [=](const std::map<int, Part>& parts) {
    std::vector<at::Tensor> tensors;
    for (const auto& [rank, each] : parts) tensors.push_back(TensorOf(each.from, count, type));
    const at::Tensor gathered = at::cat(tensors);
    for (const auto& [rank, each] : parts) TensorOf(each.to, count * parts.size(), type).copy_(gathered);
  });
}

NcclResult FakeNccl::Broadcast(void* data, std::size_t count, NcclType type, int root, NcclHandle with, void* stream) {
  const Part part{.what = {kBroadcast, static_cast<std::int64_t>(count), Number(type), root}, .from = data, .to = data};
  return Give(with, stream, part, [=](const std::map<int, Part>& parts) {
    const at::Tensor sent = TensorOf(parts.at(root).from, count, type);
    for (const auto& [rank, each] : parts) {
      if (rank != root) TensorOf(each.to, count, type).copy_(sent);
    }
  });
}

NcclResult FakeNccl::Send(const void* data, std::size_t count, NcclType type, int, NcclHandle with, void* stream) {
  const Part part{.what = {kMessage, static_cast<std::int64_t>(count), Number(type), 0}, .from = data, .to = nullptr};
  const auto compute = [=](const std::map<int, Part>& parts) {
    for (const auto& [rank, each] : parts) {
      if (each.to != nullptr) TensorOf(each.to, count, type).copy_(TensorOf(data, count, type));
    }
  };
  return Give(with, stream, part, compute);
}

NcclResult FakeNccl::Receive(void* data, std::size_t count, NcclType type, int, NcclHandle with, void* stream) {
  const Part part{.what = {kMessage, static_cast<std::int64_t>(count), Number(type), 0}, .from = nullptr, .to = data};
  return Give(with, stream, part, [=](const std::map<int, Part>& parts) {
    for (const auto& [rank, each] : parts) {
      if (each.from != nullptr) TensorOf(data, count, type).copy_(TensorOf(each.from, count, type));
    }
  });
}

}  // namespace millrace::engine
