// Groups of threads: the memory that they share is the process's own.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "millrace/base/threads/sync.h"
#include "millrace/collectives/background.h"
#include "millrace/collectives/connect.h"
#include "millrace/collectives/shared_memory.h"

namespace millrace::collectives {
namespace {

/// Where threads meet to make groups. Thread-safe.
class ThreadGroups {
 public:
  /// Returns the segment of a new group, as soon as all of its members have called it. `path` is unique.
  /// Errors: kUnavailable if a member has left the group `parent` and so never comes, or is late by more than
  /// `timeout`.
  Result<std::shared_ptr<Segment>> Join(const std::string& path, const std::string& parent, const GroupMembers& members,
                                        Duration timeout) MR_EXCLUDES(mutex_) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    MutexLock lock(mutex_);
    std::shared_ptr<Meeting>& made = meetings_[path];
    if (!made) {
      made = std::make_shared<Meeting>();
      made->segment = MR_TRY(Segment::CreatePrivate(SharedMemoryBytes(members.size())));
      InitializeSharedMemory(*made->segment, members.size());
    }
    const std::shared_ptr<Meeting> meeting = made;
    meeting->joined.insert(members.in_job[static_cast<std::size_t>(members.rank)]);
    changed_.NotifyAll();
    std::optional<int> missing, gone;  // ranks that have not come, and never will
    const auto is_decided = [&]() MR_REQUIRES(mutex_) {
      missing = gone = std::nullopt;
      for (const int member : members.in_job) {
        if (meeting->joined.contains(member)) continue;
        missing = member;
        if (left_.contains({parent, member})) gone = member;
      }
      return !missing || gone;
    };
    changed_.WaitUntil(mutex_, deadline, {}, is_decided);
    if (gone) return Fail(Code::kUnavailable, "rank {} has left the group", *gone);
    if (missing) return Fail(Code::kUnavailable, "rank {} did not answer", *missing);
    meetings_.erase(path);
    return meeting->segment;
  }

  /// Says that a rank of the job has left a group.
  void Leave(const std::string& path, int rank) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    left_.emplace(path, rank);
    changed_.NotifyAll();
  }

 private:
  struct Meeting {
    std::shared_ptr<Segment> segment;
    std::set<int> joined;  ///< ranks in the job
  };
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::shared_ptr<Meeting>> meetings_ MR_GUARDED_BY(mutex_);
  std::set<std::pair<std::string, int>> left_ MR_GUARDED_BY(mutex_);
};

/// A rank's part in a group. Its destructor says that the rank has left.
class ThreadMembership {
 public:
  ThreadMembership(std::shared_ptr<ThreadGroups> groups, std::string path, int rank)
      : groups_(std::move(groups)), path_(std::move(path)), rank_(rank) {}
  ~ThreadMembership() { groups_->Leave(path_, rank_); }
  ThreadMembership(const ThreadMembership&) = delete;
  ThreadMembership& operator=(const ThreadMembership&) = delete;

  const std::shared_ptr<ThreadGroups>& groups() const { return groups_; }
  const std::string& path() const { return path_; }

 private:
  const std::shared_ptr<ThreadGroups> groups_;
  const std::string path_;
  const int rank_;
};

std::unique_ptr<Collective> MakeThreadRank(const std::shared_ptr<ThreadGroups>& groups,
                                           std::shared_ptr<Segment> segment, std::string path, const std::string& name,
                                           GroupMembers members, Duration timeout) {
  const int rank = members.in_job[static_cast<std::size_t>(members.rank)];
  const auto membership = std::make_shared<const ThreadMembership>(groups, std::move(path), rank);
  auto split = [membership, members, timeout](const std::string& name,
                                              std::span<const int> some) -> Result<std::unique_ptr<Collective>> {
    const std::string& parent = membership->path();
    const std::string group = fmt::format("{}/{}[{}]", parent, name, fmt::join(some, ","));
    GroupMembers part = members.Part(some);
    auto joined = MR_TRY(membership->groups()->Join(group, parent, part, timeout));
    return MakeThreadRank(membership->groups(), std::move(joined), group, name, std::move(part), timeout);
  };
  return MakeCollective(MakeSharedMemoryTransport(std::move(segment), members, timeout, std::move(split)), name);
}

}  // namespace

std::vector<std::unique_ptr<Collective>> ConnectThreads(int size, Duration timeout) {
  std::vector<std::unique_ptr<Collective>> ranks;
  if (size == 1) {
    ranks.push_back(MakeSoloCollective());
    return ranks;
  }
  const auto groups = std::make_shared<ThreadGroups>();
  // Fails only without memory, as an allocation would.
  const std::shared_ptr<Segment> segment = Segment::CreatePrivate(SharedMemoryBytes(size)).value();
  InitializeSharedMemory(*segment, size);
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(MakeThreadRank(groups, segment, "", "job", GroupMembers::Job(rank, size), timeout));
  }
  return ranks;
}

}  // namespace millrace::collectives
