#include "millrace/collectives/connect.h"

#include <fmt/ranges.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <limits>
#include <utility>

#include "millrace/base/files/files.h"
#include "millrace/base/threads/sync.h"
#include "millrace/collectives/background.h"
#include "millrace/collectives/rendezvous/local_secret.h"
#include "millrace/collectives/rendezvous/rank_store.h"
#include "millrace/collectives/shared_memory.h"
#include "millrace/collectives/tcp/rank_network.h"
#include "millrace/collectives/tcp_transport.h"

namespace millrace::collectives {
namespace {

constexpr const char* kSecretVariable = "MILLRACE_RANK_SECRET";
/// As for agents' keys.
constexpr std::size_t kLeastSecret = 16;

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

/// The ranks of a job may have one secret for all attempts, as with mpirun.
RankKey KeyOf(const RankInfo& info, const SecretBytes& secret) {
  return RankKey::Derive(secret, fmt::format("ranks of attempt {}, {} in all", info.attempt, info.size));
}

/// Where the ranks of a job meet to make groups: the store on the machine of rank 0. Shared by all groups of a process;
/// rank 0's keeps the store alive. Thread-safe.
class MeetingPoint {
 public:
  static Result<std::shared_ptr<const MeetingPoint>> Open(const RankInfo& info, Duration timeout) {
    const TimePoint deadline = SystemClock().Now() + timeout;
    SecretBytes secret = info.secret;
    std::unique_ptr<LocalSecret> local;
    if (secret.empty()) {
      if (!IsThisMachine(info.master_address)) {
        return Fail(Code::kInvalidArgument,
                    "MILLRACE_RANK_SECRET is not set, and other machines reach {}: start the ranks with `millrace job "
                    "run`, or\n"
                    "give all ranks the same secret of {} to {} characters in this variable, such as the output of "
                    "`openssl rand -hex 32`",
                    info.master_address, kLeastSecret, SecretBytes::kMax);
      }
      if (info.rank == 0) local = MR_TRY(LocalSecret::Serve(info.master_port));
      secret = local ? local->secret() : MR_TRY(LocalSecret::Fetch(info.master_port, deadline));
    }
    RankKey key = KeyOf(info, secret);
    const Route route = MR_TRY(Route::To(info.master_address, info.master_port));
    std::unique_ptr<StoreServer> server;
    if (info.rank == 0) {
      const SocketAddress at = ListenAddress(info.master_address, route, true).WithPort(info.master_port);
      server = MR_TRY(StoreServer::Open(at, key));
    }
    return std::shared_ptr<const MeetingPoint>(
        new MeetingPoint(info, timeout, route.remote, std::move(key), std::move(local), std::move(server)));
  }

  /// Opens a connection of its own: a connection serves one blocking call at a time, and groups that are made at the
  /// same time wait for different ranks.
  Result<RankStore> Connect() const { return RankStore::Connect(store_, key_, SystemClock().Now() + timeout_); }
  Duration timeout() const { return timeout_; }

  /// Returns this rank's way to other machines. The first call opens it, and tells the other ranks its address.
  Result<std::shared_ptr<RankNetwork>> Network() const MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!network_) {
      std::shared_ptr<RankNetwork> opened = MR_TRY(RankNetwork::Open(host_, store_.port(), key_, rank_ == 0));
      RankStore store = MR_TRY(Connect());
      MR_TRY(store.Set(AddressKey(rank_), opened->Address(), SystemClock().Now() + timeout_));
      network_ = std::move(opened);
    }
    return network_;
  }
  /// Returns the addresses in their Network() of some ranks, which also call Network().
  Result<std::vector<std::string>> AddressesOf(const std::vector<int>& ranks) const {
    RankStore store = MR_TRY(Connect());
    std::vector<std::string> addresses;
    for (const int rank : ranks) addresses.push_back(MR_TRY(GetOf(store, rank, AddressKey(rank))));
    return addresses;
  }
  /// Returns what rank `rank` of the job leaves under a key. Errors name it.
  Result<std::string> GetOf(RankStore& store, int rank, const std::string& key) const {
    auto text = store.Get(key, SystemClock().Now() + timeout_);
    if (!text) return Fail(text.error().Context(fmt::format("waiting for rank {} of the job", rank)));
    return text;
  }

 private:
  MeetingPoint(const RankInfo& info, Duration timeout, const SocketAddress& store, RankKey key,
               std::unique_ptr<LocalSecret> local, std::unique_ptr<StoreServer> server)
      : rank_(info.rank),
        host_(info.master_address),
        timeout_(timeout),
        store_(store),
        key_(std::move(key)),
        local_(std::move(local)),
        server_(std::move(server)) {}

  static std::string AddressKey(int rank) { return fmt::format("address of rank {}", rank); }

  const int rank_;
  const std::string host_;
  const Duration timeout_;
  const SocketAddress store_;
  const RankKey key_;
  const std::unique_ptr<LocalSecret> local_;   ///< on rank 0, if nobody gave the ranks a secret
  const std::unique_ptr<StoreServer> server_;  ///< on rank 0
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

/// The texts that the ranks of a group leave for each other while they make it.
class GroupTexts {
 public:
  GroupTexts(const GroupPlan& plan, RankStore store) : plan_(plan), store_(std::move(store)) {}

  Status Leave(std::string_view what, std::string_view text) {
    return store_.Set(KeyOf(what, plan_.members.rank), text, SystemClock().Now() + plan_.meeting->timeout());
  }
  Result<std::string> Of(int member, std::string_view what) {
    const int rank = plan_.members.in_job[static_cast<std::size_t>(member)];
    return plan_.meeting->GetOf(store_, rank, KeyOf(what, member));
  }
  /// Returns whether all ranks, this one too, have left `text`.
  Result<bool> AllAre(std::string_view what, std::string_view text) {
    bool all = true;
    for (int member = 0; member < plan_.members.size(); ++member) all = MR_TRY(Of(member, what)) == text && all;
    return all;
  }

 private:
  std::string KeyOf(std::string_view what, int member) const {
    return fmt::format("{} of {} in {}", what, member, plan_.path);
  }

  const GroupPlan& plan_;
  RankStore store_;
};

/// Returns the group's segment if its ranks are on one machine and all of them can attach to one; otherwise null, on
/// every rank. Errors: kUnavailable if a rank does not come in time.
Result<std::shared_ptr<Segment>> MeetInSharedMemory(GroupTexts& texts, int rank, int ranks) {
  const std::string identity = MachineIdentity();
  MR_TRY(texts.Leave("machine", identity));
  if (!MR_TRY(texts.AllAre("machine", identity)) || identity.empty()) return nullptr;

  const std::size_t bytes = SharedMemoryBytes(ranks);
  std::shared_ptr<Segment> segment;
  if (rank == 0) {
    if (auto made = Segment::Create(bytes)) {
      segment = *std::move(made);
      InitializeSharedMemory(*segment, ranks);
    }
    MR_TRY(texts.Leave("segment", segment ? segment->name() : ""));
  } else if (const std::string name = MR_TRY(texts.Of(0, "segment")); !name.empty()) {
    if (auto attached = Segment::Attach(name, bytes)) segment = *std::move(attached);
  }
  MR_TRY(texts.Leave("attached", segment ? "yes" : "no"));
  if (!MR_TRY(texts.AllAre("attached", "yes"))) return nullptr;
  segment->Unlink();
  return segment;
}

Result<std::unique_ptr<Collective>> MakeGroup(const GroupPlan& plan);

Result<std::unique_ptr<Transport>> MakeTransport(const GroupPlan& plan) {
  auto split = [plan](const std::string& name, std::span<const int> members) -> Result<std::unique_ptr<Collective>> {
    GroupPlan part = plan;
    part.name = name;
    part.path = fmt::format("{}/{}[{}]", plan.path, name, fmt::join(members, ","));
    part.members = plan.members.Part(members);
    return MakeGroup(part);
  };
  const MeetingPoint& meeting = *plan.meeting;
  if (plan.choice == TransportChoice::kSharedMemoryOrTcp) {
    GroupTexts texts(plan, MR_TRY(meeting.Connect()));
    if (auto segment = MR_TRY(MeetInSharedMemory(texts, plan.members.rank, plan.members.size()))) {
      return MakeSharedMemoryTransport(std::move(segment), plan.members, meeting.timeout(), split);
    }
  }
  auto network = MR_TRY(meeting.Network());
  auto addresses = MR_TRY(meeting.AddressesOf(plan.members.in_job));
  return ConnectTcpTransport(std::move(network), plan.path, std::move(addresses), plan.members, meeting.timeout(),
                             split);
}

Result<std::unique_ptr<Collective>> MakeGroup(const GroupPlan& plan) {
  auto transport = MakeTransport(plan);
  if (!transport) {
    return Fail(transport.error().Context(
        fmt::format("rank {} of {} in group {}", plan.members.rank, plan.members.size(), plan.path)));
  }
  return MakeCollective(*std::move(transport), plan.name);
}

Result<std::unique_ptr<Collective>> ConnectJob(const RankInfo& info, Duration timeout, TransportChoice choice) {
  if (info.size == 1) return MakeSoloCollective();
  const auto connect = [&]() -> Result<std::unique_ptr<Collective>> {
    auto meeting = MR_TRY(MeetingPoint::Open(info, timeout));
    return MakeGroup({std::move(meeting), choice, "job", "job", GroupMembers::Job(info.rank, info.size)});
  };
  auto group = connect();
  if (!group) {
    Error error = group.error();
    // Another job has the port, as it may before rank 0 listens. The next attempt has another port.
    if (error.code() == Code::kPermissionDenied) error = error.WithCode(Code::kUnavailable);
    return Fail(error.Context(fmt::format("connecting rank {} of {} through {}:{}", info.rank, info.size,
                                          info.master_address, info.master_port)));
  }
  return group;
}

/// Moves the secret out of the environment.
Result<SecretBytes> TakeSecret() {
  char* const text = std::getenv(kSecretVariable);
  if (text == nullptr) return SecretBytes();
  const std::string_view given(text);
  if (given.size() < kLeastSecret || given.size() > SecretBytes::kMax) {
    return Fail(Code::kInvalidArgument, "{} has {} characters; expected {} to {}", kSecretVariable, given.size(),
                kLeastSecret, SecretBytes::kMax);
  }
  SecretBytes secret(AsBytes(given));
  ::explicit_bzero(text, given.size());
  ::unsetenv(kSecretVariable);
  return secret;
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
  info.attempt = MR_TRY(EnvironmentInt("MILLRACE_ATTEMPT", 1, 0, std::numeric_limits<int>::max()));
  info.secret = MR_TRY(TakeSecret());
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

}  // namespace millrace::collectives
