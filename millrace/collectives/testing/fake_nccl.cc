#include "millrace/collectives/testing/fake_nccl.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "millrace/base/hash/random.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/collectives/combine.h"

namespace millrace::collectives {
namespace {

/// A point that has been passed when Pass() was called.
class FakePoint final : public StreamPoint {
 public:
  void Pass() MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    is_passed_ = true;
    passed_.NotifyAll();
  }
  Result<bool> IsPassed() const override MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return is_passed_;
  }
  Status HoldCurrent() const override MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!is_passed_) passed_.Wait(mutex_);
    return {};
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar passed_;
  bool is_passed_ MR_GUARDED_BY(mutex_) = false;
};

class FakeStream final : public SideStream {
 public:
  void* handle() override { return this; }
  Status WaitFor(const StreamPoint& point) override {
    // The tests' points of other streams are passed, or are marks of the CPU, which is not late.
    return point.HoldCurrent();
  }
  Result<std::shared_ptr<const StreamPoint>> RecordPoint() override {
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

ElementType TypeOf(NcclType type) {
  switch (type) {
    case NcclType::kUint8:
      return ElementType::kUint8;
    case NcclType::kInt32:
      return ElementType::kInt32;
    case NcclType::kInt64:
      return ElementType::kInt64;
    case NcclType::kFloat16:
      return ElementType::kFloat16;
    case NcclType::kFloat32:
      return ElementType::kFloat32;
    case NcclType::kFloat64:
      return ElementType::kFloat64;
    case NcclType::kBfloat16:
      return ElementType::kBFloat16;
  }
  std::unreachable();
}

void Copy(void* to, const void* from, std::size_t count, NcclType type) {
  if (count > 0) std::memmove(to, from, count * SizeOf(TypeOf(type)));
}

enum Kind : std::int64_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kMessage };

std::int64_t Number(NcclType type) { return static_cast<std::int64_t>(type); }

}  // namespace

Result<std::unique_ptr<SideStream>> FakeStreams::NewStream() { return std::make_unique<FakeStream>(); }
Result<std::shared_ptr<const StreamPoint>> FakeStreams::MarkCurrent() {
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

Reduction ReductionOf(NcclReduction reduction) {
  if (reduction == NcclReduction::kMax) return Reduction::kMax;
  return reduction == NcclReduction::kMean ? Reduction::kMean : Reduction::kSum;
}

/// Combines elements in the order of ranks, in float32 if they have 16 bits.
void CombineParts(const std::vector<const void*>& parts, std::size_t count, NcclType type, NcclReduction reduction,
                  void* into) {
  const auto elements = static_cast<std::int64_t>(count);
  if (type != NcclType::kFloat16) return Combine(TypeOf(type), ReductionOf(reduction), into, parts, elements);
  std::vector<std::vector<float>> wide;
  for (const void* part : parts) {
    const auto* halves = static_cast<const _Float16*>(part);
    wide.emplace_back(halves, halves + count);
  }
  const std::vector<const void*> sources = [&] {
    std::vector<const void*> made;
    for (const std::vector<float>& part : wide) made.push_back(part.data());
    return made;
  }();
  Combine(ElementType::kFloat32, ReductionOf(reduction), wide[0].data(), sources, elements);
  std::ranges::transform(wide[0], static_cast<_Float16*>(into), [](float sum) { return static_cast<_Float16>(sum); });
}

/// What `give` says of each part, in the order of ranks.
template <class Parts, class Give>
std::vector<const void*> Each(const Parts& parts, Give give) {
  std::vector<const void*> made;
  for (const auto& [rank, part] : parts) made.push_back(give(part));
  return made;
}

}  // namespace

NcclResult FakeNccl::AllReduce(void* data, std::size_t count, NcclType type, NcclReduction reduction, NcclHandle with,
                               void* stream) {
  const auto elements = static_cast<std::int64_t>(count);
  const Part part{
      .what = {kAllReduce, elements, Number(type), static_cast<std::int64_t>(reduction)}, .from = data, .to = data};
  return Give(with, stream, part, [=](const std::map<int, Part>& parts) {
    std::vector<std::byte> sum(count * SizeOf(TypeOf(type)));
    CombineParts(Each(parts, [](const Part& each) { return each.from; }), count, type, reduction, sum.data());
    for (const auto& [rank, each] : parts) Copy(each.to, sum.data(), count, type);
  });
}

NcclResult FakeNccl::ReduceScatter(const void* all, void* mine, std::size_t count, NcclType type,
                                   NcclReduction reduction, NcclHandle with, void* stream) {
  const auto elements = static_cast<std::int64_t>(count);
  const Part part{
      .what = {kReduceScatter, elements, Number(type), static_cast<std::int64_t>(reduction)}, .from = all, .to = mine};
  return Give(with, stream, part, [=](const std::map<int, Part>& parts) {
    const std::size_t bytes = count * SizeOf(TypeOf(type));
    std::vector<std::byte> sum(bytes * parts.size());
    CombineParts(Each(parts, [](const Part& each) { return each.from; }), count * parts.size(), type, reduction,
                 sum.data());
    for (const auto& [rank, each] : parts) {
      Copy(each.to, sum.data() + static_cast<std::size_t>(rank) * bytes, count, type);
    }
  });
}

NcclResult FakeNccl::AllGather(const void* mine, void* all, std::size_t count, NcclType type, NcclHandle with,
                               void* stream) {
  const Part part{.what = {kAllGather, static_cast<std::int64_t>(count), Number(type), 0}, .from = mine, .to = all};
  return Give(with, stream, part, [=](const std::map<int, Part>& parts) {
    const std::size_t bytes = count * SizeOf(TypeOf(type));
    std::vector<std::byte> gathered(bytes * parts.size());
    for (const auto& [rank, each] : parts) {
      Copy(gathered.data() + static_cast<std::size_t>(rank) * bytes, each.from, count, type);
    }
    for (const auto& [rank, each] : parts) Copy(each.to, gathered.data(), count * parts.size(), type);
  });
}

NcclResult FakeNccl::Broadcast(void* data, std::size_t count, NcclType type, int root, NcclHandle with, void* stream) {
  const Part part{.what = {kBroadcast, static_cast<std::int64_t>(count), Number(type), root}, .from = data, .to = data};
  return Give(with, stream, part, [=](const std::map<int, Part>& parts) {
    for (const auto& [rank, each] : parts) Copy(each.to, parts.at(root).from, count, type);
  });
}

NcclResult FakeNccl::Send(const void* data, std::size_t count, NcclType type, int, NcclHandle with, void* stream) {
  const Part part{.what = {kMessage, static_cast<std::int64_t>(count), Number(type), 0}, .from = data, .to = nullptr};
  const auto compute = [=](const std::map<int, Part>& parts) {
    for (const auto& [rank, each] : parts) {
      if (each.to != nullptr) Copy(each.to, data, count, type);
    }
  };
  return Give(with, stream, part, compute);
}

NcclResult FakeNccl::Receive(void* data, std::size_t count, NcclType type, int, NcclHandle with, void* stream) {
  const Part part{.what = {kMessage, static_cast<std::int64_t>(count), Number(type), 0}, .from = nullptr, .to = data};
  return Give(with, stream, part, [=](const std::map<int, Part>& parts) {
    for (const auto& [rank, each] : parts) {
      if (each.from != nullptr) Copy(data, each.from, count, type);
    }
  });
}

}  // namespace millrace::collectives
