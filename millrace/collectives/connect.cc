#include "millrace/collectives/connect.h"

#include <sys/stat.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/threads/sync.h"
#include "millrace/collectives/background.h"
#include "millrace/collectives/shared_memory.h"
#include "millrace/collectives/tcp/rank_network.h"
#include "millrace/collectives/tcp_transport.h"
#include "millrace/engine/errors.h"

namespace millrace::engine {
namespace {

Result<int> EnvironmentInt(const char* name, int absent, int least, int most) {
  const char* text = std::getenv(name);
  if (text == nullptr) return absent;
  const std::string_view view(text);
  int value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc() || end != view.data() + view.size() || value < least || value > most) {
    return Fail(Code::kInvalidArgument, "{}={} in the environment: expected a number in {}…{}", name, view, least,
                most);
  }
  return value;
}

/// Strings that ranks leave for each other under keys. The calls throw; they block until the key is there.
class RankStore {
 public:
  explicit RankStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  void Set(const std::string& key, std::string_view value) {
    store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
  }
  std::string Get(const std::string& key) {
    const std::vector<std::uint8_t> value = store_->get(key);
    return {value.begin(), value.end()};
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

/// Where the ranks of a job meet to make groups: the store on the machine of rank 0. Shared by all groups of a process;
/// rank 0's keeps the store alive. Thread-safe.
class MeetingPoint {
 public:
  MeetingPoint(const RankInfo& info, Duration timeout)
      : rank_(info.rank),
        host_(info.master_address),
        port_(static_cast<std::uint16_t>(info.master_port)),
        timeout_(timeout) {
    if (rank_ != 0) return;
    server_ = Open(true);
    Connect(kNetworkPrefix).Set("key", SecureHex(RankNetwork::kKeyDigits / 2));
  }

  /// Opens a connection of its own: a connection serves one blocking call at a time, and groups that are made at the
  /// same time wait for different ranks.
  RankStore Connect(const std::string& prefix) const {
    return RankStore(c10::make_intrusive<c10d::PrefixStore>(prefix, Open(false)));
  }
  Duration timeout() const { return timeout_; }

  /// Returns this rank's way to other machines. The first call opens it, and tells the other ranks its address.
  Result<std::shared_ptr<RankNetwork>> Network() const MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!network_) {
      RankStore store = Connect(kNetworkPrefix);
      network_ = MR_TRY(RankNetwork::Open(host_, port_, store.Get("key")));
      store.Set(fmt::format("address/{}", rank_), network_->Address());
    }
    return network_;
  }
  /// Returns the addresses in their Network() of some ranks, which also call Network().
  std::vector<std::string> AddressesOf(const std::vector<int>& ranks) const {
    RankStore store = Connect(kNetworkPrefix);
    std::vector<std::string> addresses;
    for (const int rank : ranks) addresses.push_back(store.Get(fmt::format("address/{}", rank)));
    return addresses;
  }

 private:
  static constexpr const char* kNetworkPrefix = "network";

  c10::intrusive_ptr<c10d::TCPStore> Open(bool serves) const {
    c10d::TCPStoreOptions options;
    options.port = port_;
    options.isServer = serves;
    options.waitWorkers = false;
    options.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(timeout_);
    return c10::make_intrusive<c10d::TCPStore>(host_, options);
  }

  const int rank_;
  const std::string host_;
  const std::uint16_t port_;
  const Duration timeout_;
  c10::intrusive_ptr<c10d::TCPStore> server_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<RankNetwork> network_ MR_GUARDED_BY(mutex_);
};

/// Which transports a job's groups may use.
enum class TransportChoice { kSharedMemoryOrTcp, kTcp };

/// A group that is being made: what its ranks know of it.
struct GroupPlan {
  std::shared_ptr<const MeetingPoint> meeting;
  TransportChoice choice;
  std::string path;  ///< unique among the job's groups
  std::string name;
  GroupMembers members;
};

/// Returns text that two processes have in common only if they can share memory through /dev/shm: the same machine
/// since the same boot, and the same mount. Containers may have the host's name, but a /dev/shm of their own.
std::string MachineIdentity() {
  struct stat shm{};
  if (::stat("/dev/shm", &shm) != 0) return {};
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  const auto boot = ReadFile("/proc/sys/kernel/random/boot_id");
  return fmt::format("{} {} {}:{}", host, boot ? *boot : "", shm.st_dev, shm.st_ino);
}

/// Returns the group's segment if its ranks are on one machine and all of them can attach to one; otherwise null, on
/// every rank. Throws if a rank does not come in time.
std::shared_ptr<Segment> MeetInSharedMemory(RankStore& store, int rank, int ranks) {
  const std::string identity = MachineIdentity();
  store.Set(fmt::format("machine/{}", rank), identity);
  bool one_machine = !identity.empty();
  for (int peer = 0; peer < ranks; ++peer) {
    one_machine = store.Get(fmt::format("machine/{}", peer)) == identity && one_machine;
  }
  if (!one_machine) return nullptr;

  const std::size_t bytes = SharedMemoryBytes(ranks);
  std::shared_ptr<Segment> segment;
  if (rank == 0) {
    if (auto made = Segment::Create(bytes)) {
      segment = *std::move(made);
      InitializeSharedMemory(*segment, ranks);
    }
    store.Set("segment", segment ? segment->name() : "");
  } else if (const std::string name = store.Get("segment"); !name.empty()) {
    if (auto attached = Segment::Attach(name, bytes)) segment = *std::move(attached);
  }
  store.Set(fmt::format("attached/{}", rank), segment ? "yes" : "no");
  bool all_attached = true;
  for (int peer = 0; peer < ranks; ++peer) {
    all_attached = store.Get(fmt::format("attached/{}", peer)) == "yes" && all_attached;
  }
  if (!all_attached) return nullptr;
  segment->Unlink();
  return segment;
}

Result<std::unique_ptr<Collective>> MakeGroup(const GroupPlan& plan) {
  auto split = [plan](const std::string& name, std::span<const int> members) -> Result<std::unique_ptr<Collective>> {
    GroupPlan part = plan;
    part.name = name;
    part.path = fmt::format("{}/{}[{}]", plan.path, name, fmt::join(members, ","));
    part.members = plan.members.Part(members);
    return MakeGroup(part);
  };
  const int rank = plan.members.rank, ranks = plan.members.size();
  const MeetingPoint& meeting = *plan.meeting;
  auto transport = CatchTorch(
      fmt::format("rank {} of {} in group {}", rank, ranks, plan.path), [&]() -> Result<std::unique_ptr<Transport>> {
        RankStore store = meeting.Connect(plan.path);
        if (plan.choice == TransportChoice::kSharedMemoryOrTcp) {
          if (auto segment = MeetInSharedMemory(store, rank, ranks)) {
            return MakeSharedMemoryTransport(std::move(segment), plan.members, meeting.timeout(), split);
          }
        }
        auto network = MR_TRY(meeting.Network());
        return ConnectTcpTransport(std::move(network), plan.path, meeting.AddressesOf(plan.members.in_job),
                                   plan.members, meeting.timeout(), split);
      });
  if (!transport) return Fail(transport.error().WithCode(Code::kUnavailable));
  if (!*transport) return Fail(transport->error().WithCode(Code::kUnavailable));
  return MakeCollective(**std::move(transport), plan.name);
}

Result<std::unique_ptr<Collective>> ConnectJob(const RankInfo& info, Duration timeout, TransportChoice choice) {
  if (info.size == 1) return MakeSoloCollective();
  const std::string what = fmt::format("connecting rank {} of {} through {}:{}", info.rank, info.size,
                                       info.master_address, info.master_port);
  auto meeting = CatchTorch(what, [&] { return std::make_shared<const MeetingPoint>(info, timeout); });
  if (!meeting) return Fail(meeting.error().WithCode(Code::kUnavailable));
  auto group = MakeGroup({*std::move(meeting), choice, "job", "job", GroupMembers::Job(info.rank, info.size)});
  if (!group) return Fail(group.error().Context(what));
  return group;
}

}  // namespace

Result<RankInfo> RankInfo::FromEnvironment() {
  RankInfo info;
  info.size = MR_TRY(EnvironmentInt("WORLD_SIZE", 1, 1, 1 << 20));
  info.rank = MR_TRY(EnvironmentInt("RANK", 0, 0, info.size - 1));
  info.local_size = MR_TRY(EnvironmentInt("LOCAL_WORLD_SIZE", info.size, 1, info.size));
  info.local_rank = MR_TRY(EnvironmentInt("LOCAL_RANK", info.rank, 0, info.local_size - 1));
  info.master_port = MR_TRY(EnvironmentInt("MASTER_PORT", 0, 0, 65'535));
  if (const char* address = std::getenv("MASTER_ADDR")) info.master_address = address;
  if (info.size > 1 && info.master_port == 0) {
    return Fail(Code::kInvalidArgument,
                "WORLD_SIZE is {} but MASTER_PORT is not set; start the ranks with `millrace job run`", info.size);
  }
  return info;
}

Result<std::unique_ptr<Collective>> ConnectRanks(const RankInfo& info, Duration timeout) {
  return ConnectJob(info, timeout, TransportChoice::kSharedMemoryOrTcp);
}

Result<std::unique_ptr<Collective>> ConnectTcp(const RankInfo& info, Duration timeout) {
  return ConnectJob(info, timeout, TransportChoice::kTcp);
}

}  // namespace millrace::engine
