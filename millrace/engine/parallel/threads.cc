// Groups of threads: the memory that they share is the process's own.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "millrace/base/threads/sync.h"
#include "millrace/engine/parallel/background.h"
#include "millrace/engine/parallel/connect.h"
#include "millrace/engine/parallel/shared_memory.h"

namespace millrace::engine {
namespace {

/// The segments of groups that are being made. The first member of a group makes its segment; the last one to come
/// takes it from here. Thread-safe.
class ThreadGroups {
 public:
  Result<std::shared_ptr<Segment>> Join(const std::string& group, int ranks) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    Meeting& meeting = meetings_[group];
    if (!meeting.segment) {
      auto segment = Segment::CreatePrivate(SharedMemoryBytes(ranks));
      if (!segment) {
        meetings_.erase(group);
        return segment;
      }
      InitializeSharedMemory(**segment, ranks);
      meeting.segment = *std::move(segment);
    }
    std::shared_ptr<Segment> segment = meeting.segment;
    if (++meeting.joined == ranks) meetings_.erase(group);
    return segment;
  }

 private:
  struct Meeting {
    std::shared_ptr<Segment> segment;
    int joined = 0;
  };
  Mutex mutex_;
  std::map<std::string, Meeting> meetings_ MR_GUARDED_BY(mutex_);
};

std::unique_ptr<Collective> MakeThreadRank(std::shared_ptr<ThreadGroups> groups, std::shared_ptr<Segment> segment,
                                           std::string path, GroupMembers members, Duration timeout) {
  auto split = [groups, path, members, timeout](const std::string& name,
                                                std::span<const int> some) -> Result<std::unique_ptr<Collective>> {
    const std::string group = fmt::format("{}/{}[{}]", path, name, fmt::join(some, ","));
    GroupMembers part = members.Part(some);
    auto joined = MR_TRY(groups->Join(group, part.size()));
    return MakeThreadRank(groups, std::move(joined), group, std::move(part), timeout);
  };
  return MakeCollective(MakeSharedMemoryTransport(std::move(segment), members, timeout, std::move(split)));
}

}  // namespace

std::vector<std::unique_ptr<Collective>> ConnectThreads(int size, Duration timeout) {
  std::vector<std::unique_ptr<Collective>> ranks;
  if (size == 1) {
    ranks.push_back(MakeSoloCollective());
    return ranks;
  }
  const auto groups = std::make_shared<ThreadGroups>();
  for (int rank = 0; rank < size; ++rank) {
    // Fails only without memory, as an allocation would.
    ranks.push_back(MakeThreadRank(groups, groups->Join("", size).value(), "", GroupMembers::Job(rank, size), timeout));
  }
  return ranks;
}

}  // namespace millrace::engine
