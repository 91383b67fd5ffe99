// Each rank of a job, a process of its own, is killed at each phase of a save to the local disk and the store. The
// others must give up or commit, never hang; what was committed before is there and whole; all ranks go on from the
// newest commit, on the disk or in the store; and nothing of the broken save is left after the next ones. The same
// where a save to the disk goes on beside one to the store: neither takes the other with it. And the same where each
// rank is on a machine of its own, whose disk is lost with it or not.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <latch>

#include "millrace/base/files/files.h"
#include "millrace/checkpoint/local/local_tier.h"
#include "millrace/checkpoint/local/peer_machines.h"
#include "millrace/checkpoint/read/catalog.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/save/local_folder.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/random_state.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/file_store.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::checkpoint {
namespace {

using object::Operation;
using testing::State;
using testing::StoreConnection;

constexpr int kRanks = 3;
constexpr const char* kUrl = "s3://bucket/run";
constexpr std::uint64_t kOwnBytes = 40'000, kPartBytes = 16'384;

[[noreturn]] void Die() {
  kill(getpid(), SIGKILL);
  while (true) pause();
}

/// A moment of a save.
struct Point {
  enum class At { kCopy, kFileSize, kExchange, kRequest, kCommit };
  At at = At::kRequest;
  bool after = false;  ///< the exchange or request has taken place
  /// For an exchange, its number: 0 to 2 for the disk and 3 to 5 for the store, or 0 to 2 for both if each has a
  /// group of its own. For a request, the number of requests before it.
  int index = 0;
  Operation operation = Operation::kPut;
  const char* key = "";                          ///< its beginning
  CheckpointTier tier = CheckpointTier::kStore;  ///< of the commit
};
using At = Point::At;
constexpr Point Before(int exchange) { return {.at = At::kExchange, .index = exchange}; }
constexpr Point After(int exchange) { return {.at = At::kExchange, .after = true, .index = exchange}; }
constexpr Point Before(Operation operation, const char* key = "", int skip = 0) {
  return {.index = skip, .operation = operation, .key = key};
}
constexpr Point After(Operation operation, const char* key = "", int skip = 0) {
  return {.after = true, .index = skip, .operation = operation, .key = key};
}

/// How far the save has come when all is over. Perhaps: the disks have it if the others had given the victim their
/// copies before it died.
enum class Committed { kNowhere, kPerhapsDisk, kDisk, kStore };
using enum Committed;

/// What else is under way when a rank dies in a save of its own: an upload that does not come to its end, or a save to
/// the disk that does not.
enum class Beside { kNothing, kUpload, kDisksSave };
/// The local disks: one that all ranks see, or one of each, where the victim's may be gone when the others go on.
enum class Disks { kShared, kOwn, kLost };

struct Phase {
  const char* name;
  Point point;
  Committed rank_0;                ///< when rank 0 dies
  std::optional<Committed> other;  ///< when another one does; nothing: only rank 0 comes there
  Beside beside = Beside::kNothing;
  Disks disks = Disks::kShared;
};
void PrintTo(const Phase& phase, std::ostream* out) { *out << phase.name; }

constexpr const char *kOldManifest = "run/step-00000010.json", *kNewManifest = "run/step-00000020.json";
const Phase kPhases[] = {
    {"CopyingTheSnapshot", {.at = At::kCopy}, kNowhere, kNowhere},
    {"BeginningOnTheDisk", After(0), kNowhere, kNowhere},
    {"WritingToTheDisk", {.at = At::kFileSize}, kNowhere, kNowhere},
    {"BeforeReportingTheDisksFile", Before(1), kNowhere, kNowhere},
    {"AfterReportingTheDisksFile", After(1), kNowhere, kDisk},
    {"BeforeTellingOfTheDisk", Before(2), kDisk, kDisk},
    {"CommittedOnTheDisk", {.at = At::kCommit, .tier = CheckpointTier::kLocal}, kDisk, kDisk},
    {"BeforeBeginningInTheStore", Before(3), kDisk, kDisk},
    {"BeginningInTheStore", After(3), kDisk, kDisk},
    {"BeforeTheUpload", Before(Operation::kCreateMultipart), kDisk, kDisk},
    {"BeforeAPart", Before(Operation::kUploadPart, "", 1), kDisk, kDisk},
    {"AfterAPart", After(Operation::kUploadPart, "", 1), kDisk, kDisk},
    {"BeforeTheFile", Before(Operation::kCompleteMultipart), kDisk, kDisk},
    {"AfterTheFile", After(Operation::kCompleteMultipart), kDisk, kDisk},
    {"BeforeReporting", Before(4), kDisk, kDisk},
    {"AfterReporting", After(4), kDisk, kStore},
    {"BeforeTheManifest", Before(Operation::kPut, kNewManifest), kDisk, {}},
    {"AfterTheManifest", After(Operation::kPut, kNewManifest), kStore, {}},
    {"BeforeTelling", Before(5), kStore, kStore},
    {"AfterTelling", After(5), kStore, kStore},
    {"BeforeRetention", {.at = At::kCommit}, kStore, kStore},
    {"BeforeSayingWhatGoes", Before(Operation::kPut, "run/step-00000010.going"), kStore, {}},
    {"BeforeTheFence", Before(Operation::kPut, kOldManifest), kStore, {}},
    {"AfterTheFence", After(Operation::kPut, kOldManifest), kStore, {}},
    {"BeforeDeleting", Before(Operation::kDeleteMany), kStore, {}},
    {"AfterDeleting", After(Operation::kDeleteMany), kStore, {}},

    {"CopyingBesideAnUpload", {.at = At::kCopy}, kNowhere, kNowhere, Beside::kUpload},
    {"BeginningOnTheDiskBesideAnUpload", After(0), kNowhere, kNowhere, Beside::kUpload},
    {"WritingToTheDiskBesideAnUpload", {.at = At::kFileSize}, kNowhere, kNowhere, Beside::kUpload},
    {"BeforeReportingTheDisksFileBesideAnUpload", Before(1), kNowhere, kNowhere, Beside::kUpload},
    {"AfterReportingTheDisksFileBesideAnUpload", After(1), kNowhere, kDisk, Beside::kUpload},
    {"BeforeTellingOfTheDiskBesideAnUpload", Before(2), kDisk, kDisk, Beside::kUpload},
    {"AfterTellingOfTheDiskBesideAnUpload", After(2), kDisk, kDisk, Beside::kUpload},
    {"CommittedOnTheDiskBesideAnUpload",
     {.at = At::kCommit, .tier = CheckpointTier::kLocal},
     kDisk,
     kDisk,
     Beside::kUpload},

    {"BeforeAPartBesideTheDisk", Before(Operation::kUploadPart, "", 1), kNowhere, kNowhere, Beside::kDisksSave},
    {"AfterTheFileBesideTheDisk", After(Operation::kCompleteMultipart), kNowhere, kNowhere, Beside::kDisksSave},
    {"BeforeReportingBesideTheDisk", Before(1), kNowhere, kNowhere, Beside::kDisksSave},
    {"AfterReportingBesideTheDisk", After(1), kNowhere, kStore, Beside::kDisksSave},
    {"BeforeTheManifestBesideTheDisk", Before(Operation::kPut, kNewManifest), kNowhere, {}, Beside::kDisksSave},
    {"AfterTheManifestBesideTheDisk", After(Operation::kPut, kNewManifest), kStore, {}, Beside::kDisksSave},
    {"BeforeTellingBesideTheDisk", Before(2), kStore, kStore, Beside::kDisksSave},
    {"BeforeRetentionBesideTheDisk", {.at = At::kCommit}, kStore, kStore, Beside::kDisksSave},
    {"BeforeDeletingBesideTheDisk", Before(Operation::kDeleteMany), kStore, {}, Beside::kDisksSave},
};

/// A save to the disks of machines has two exchanges more: 3 brings the manifest to all, at 4 all have it.
Phase OnMachines(const char* name, Point point, Committed rank_0, Committed other, Disks disks) {
  return {name, point, rank_0, other, Beside::kNothing, disks};
}
const Phase kMachinePhases[] = {
    OnMachines("Copying", {.at = At::kCopy}, kNowhere, kNowhere, Disks::kOwn),
    OnMachines("Beginning", After(0), kNowhere, kNowhere, Disks::kOwn),
    OnMachines("Writing", {.at = At::kFileSize}, kNowhere, kNowhere, Disks::kOwn),
    OnMachines("BeforeReporting", Before(1), kNowhere, kNowhere, Disks::kOwn),
    OnMachines("AfterReporting", After(1), kNowhere, kPerhapsDisk, Disks::kOwn),
    OnMachines("BeforeTelling", Before(2), kDisk, kPerhapsDisk, Disks::kOwn),
    OnMachines("BeforeTheManifestGoesRound", Before(3), kDisk, kDisk, Disks::kOwn),
    OnMachines("AfterTheManifestWentRound", After(3), kDisk, kDisk, Disks::kOwn),
    OnMachines("BeforeAllHaveIt", Before(4), kDisk, kDisk, Disks::kOwn),
    OnMachines("AfterAllHaveIt", After(4), kDisk, kDisk, Disks::kOwn),

    OnMachines("BeginningIsLost", After(0), kNowhere, kNowhere, Disks::kLost),
    OnMachines("BeforeReportingIsLost", Before(1), kNowhere, kNowhere, Disks::kLost),
    OnMachines("AfterReportingIsLost", After(1), kNowhere, kPerhapsDisk, Disks::kLost),
    // Only rank 0's machine had the manifest.
    OnMachines("BeforeTheManifestGoesRoundIsLost", Before(3), kNowhere, kDisk, Disks::kLost),
    OnMachines("AfterTheManifestWentRoundIsLost", After(3), kDisk, kDisk, Disks::kLost),
    OnMachines("AfterAllHaveItIsLost", After(4), kDisk, kDisk, Disks::kLost),
};

/// What a rank's process tells the test, in shared memory.
struct Told {
  std::uint64_t resumed = 0;    ///< the step it went on from
  std::uint64_t committed = 0;  ///< the last that its writer said was in the store
  bool right = true;            ///< what it read is what had been saved
};

/// Ranks as processes: rank 0 has a socket to every other one. A process that dies closes its own.
class SocketGroup final : public RankExchange {
 public:
  SocketGroup(int rank, std::vector<int> peers) : rank_(rank), peers_(std::move(peers)) {}
  int rank() const override { return rank_; }
  int size() const override { return kRanks; }
  Result<std::vector<std::string>> Gather(std::string mine) override {
    const auto pass = Pass();
    if (rank_ != 0) {
      MR_TRY(Send(0, mine));
      return std::vector<std::string>{};
    }
    std::vector<std::string> all{std::move(mine)};
    for (int other = 1; other < kRanks; ++other) all.push_back(MR_TRY(Receive(other)));
    return all;
  }
  Result<std::string> Broadcast(std::string text) override {
    const auto pass = Pass();
    if (rank_ != 0) return Receive(0);
    Status all;
    for (int other = 1; other < kRanks; ++other)
      if (auto sent = Send(other, text); !sent) all = sent;  // the others are told all the same
    if (!all) return Fail(all.error());
    return text;
  }
  /// From now on exchanges are counted; `act` is called on the way into one of them, or on its way out.
  void ActAt(int exchange, bool after, std::function<void()> act) {
    left_ = exchange;
    after_ = after;
    act_ = std::move(act);
  }

 private:
  struct Passing {
    const std::function<void()>* act = nullptr;
    ~Passing() {
      if (act) (*act)();
    }
  };
  /// On the way into an exchange; its end is the way out.
  Passing Pass() {
    if (!left_ || (*left_)-- != 0) return {};
    if (after_) return {&act_};
    act_();
    return {};
  }
  Status Send(int to, const std::string& text) {
    const std::uint32_t size = static_cast<std::uint32_t>(text.size());
    std::string message(reinterpret_cast<const char*>(&size), sizeof size);
    message += text;
    for (std::size_t at = 0; at < message.size();) {
      const ssize_t sent = send(peers_[to], message.data() + at, message.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return Fail(Code::kUnavailable, "rank {} is gone", to);
      at += static_cast<std::size_t>(sent);
    }
    return {};
  }
  Result<std::string> Receive(int from) {
    const auto exactly = [&](void* into, std::size_t size) {
      return recv(peers_[from], into, size, MSG_WAITALL) == static_cast<ssize_t>(size);
    };
    std::uint32_t size = 0;
    std::string text;
    bool whole = exactly(&size, sizeof size);
    if (whole) text.resize(size);
    if (whole && size > 0) whole = exactly(text.data(), size);
    if (!whole) return Fail(Code::kUnavailable, "rank {} is gone", from);
    return text;
  }

  const int rank_;
  const std::vector<int> peers_;
  std::optional<int> left_;
  bool after_ = false;
  std::function<void()> act_;
};
/// Of the ranks: for the store, and for what is agreed about the disk beside it.
struct Groups {
  std::shared_ptr<SocketGroup> store, disk;
};

/// What the ranks save at a step: of one tensor a third each, and each a tensor of its own.
State StateOf(std::uint64_t step) {
  State state;
  Random random(step);
  for (const char* name : {"model/all", "model/0", "model/1", "model/2"}) {
    auto& tensor = state.tensors[name];
    tensor = {{DType::kU8, {static_cast<std::int64_t>(kOwnBytes)}}, std::vector<std::byte>(kOwnBytes)};
    for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random.Next());
  }
  return state;
}
std::vector<SaveSlice> SlicesOf(const State& state, int rank) {
  const auto& own = state.tensors.at(fmt::format("model/{}", rank));
  const auto& all = state.tensors.at("model/all");
  const std::uint64_t begin = kOwnBytes * rank / kRanks, end = kOwnBytes * (rank + 1) / kRanks;
  return {{fmt::format("model/{}", rank), own.meta, 0, own.bytes},
          {"model/all", all.meta, begin, ByteSpan(all.bytes).subspan(begin, end - begin)}};
}

/// One rank's process, from its start to its end or death.
class Rank {
 public:
  Rank(Groups groups, const std::string& folder, Disks disks, Told& told)
      : told_(told),
        group_(std::move(groups.store)),
        disk_group_(std::move(groups.disk)),
        store_(object::FaultStore::Create(
            *object::OpenFileStore({.root = folder + "/bucket", .create_root = true, .durable = false, .threads = 2}))),
        tier_{folder + "/disk"} {
    clock_.AdvanceOnSleep(true);
    if (disks == Disks::kShared) return;
    tier_.path += fmt::format("/{}", group_->rank());
    tier_.copies = 2;
  }

  /// Goes on from the newest checkpoint and saves two more, one after the other to both places, or with `beside` step
  /// 10 to both, 20 to the store and 30 to the disk at a time. `victim`: dies as that says.
  bool Live(Beside beside, const Phase* victim) {
    auto machines = PeerMachines::Connect(*group_, tier_, kUrl, clock_);
    if (!machines || (*machines == nullptr) != (tier_.copies == 1)) return false;
    machines_ = *machines;
    auto newest = OpenNewest(connection_, *group_, kUrl, tier_, machines_, Logger());
    if (!newest) return false;
    std::uint64_t step = 0;
    if (newest->reader) {
      step = newest->reader->manifest().step;
      for (const auto& [name, tensor] : StateOf(step).tensors) {
        std::vector<std::byte> read(tensor.bytes.size());
        told_.right = told_.right && newest->reader->Read(name, 0, read) && read == tensor.bytes;
      }
    }
    told_.resumed = step;
    Writer::Options options{
        .url = kUrl, .retention = {.keep_last = 1}, .local = tier_, .local_peers = machines_, .part_bytes = kPartBytes};
    options.chunk_bytes = 4096;
    options.on_done = [&](const Result<SaveStats>& stats) {
      if (stats && stats->step > 10 && dies_at_commit_ == stats->tier) act_();
      if (stats && stats->tier == CheckpointTier::kStore) told_.committed = stats->step;
    };
    if (beside != Beside::kNothing) {
      options.local_group = disk_group_;
      options.snapshot_bytes = 2 * kOwnBytes;
    }
    auto writer = Writer::Open(connection_, group_, budget_, options);
    if (!writer) return false;
    for (int save = 0; save < 2; ++save) {
      step += 10;
      const State state = StateOf(step);
      auto slices = SlicesOf(state, group_->rank());
      if (beside != Beside::kNothing && step == 20) return SaveBeside(**writer, victim);
      if (victim && step == 20) Arm(victim->point, slices);
      const bool started = (*writer)->Save(step, slices, {}, {.to_local = true}).has_value();
      if (!(*writer)->Wait() || !started) return false;
    }
    return true;
  }

 private:
  /// Step 20 to the store, and step 30 to the disk meanwhile.
  bool SaveBeside(Writer& writer, const Phase* victim) {
    const State to_store = StateOf(20), to_disk = StateOf(30);
    auto stored = SlicesOf(to_store, group_->rank()), kept = SlicesOf(to_disk, group_->rank());
    const auto hang = [this] {
      beside_.count_down();
      while (true) pause();
    };
    if (victim && victim->beside == Beside::kUpload) {
      store_->Add({.operation = Operation::kUploadPart, .skip = 1, .fault = {.action = hang}});
    } else if (victim) {
      act_ = [this] {
        beside_.wait();
        Die();
      };
      disk_group_->ActAt(1, false, hang);
      Arm(victim->point, stored);
    }
    bool saved = writer.Save(20, stored, {}).has_value();
    if (victim && victim->beside == Beside::kUpload) {
      beside_.wait();
      Arm(victim->point, kept, /*in_disks_save=*/true);
    }
    saved = writer.Save(30, kept, {}, {.to_store = false, .to_local = true}) && saved;
    return writer.Wait() && saved;
  }

  void Arm(const Point& point, std::vector<SaveSlice>& slices, bool in_disks_save = false) {
    switch (point.at) {
      case At::kCopy:
        slices[0].bytes = Trap(slices[0].bytes);
        break;
      case At::kFileSize: {  // the system ends a process that writes beyond it
        const rlimit limit{kPartBytes / 2, kPartBytes / 2};
        setrlimit(RLIMIT_FSIZE, &limit);
        break;
      }
      case At::kExchange:
        (in_disks_save ? disk_group_ : group_)->ActAt(point.index, point.after, act_);
        break;
      case At::kRequest:
        store_->Add({.operation = point.operation,
                     .key_prefix = point.key,
                     .skip = point.index,
                     .fault = {.after_effect = point.after, .action = act_}});
        break;
      case At::kCommit:
        dies_at_commit_ = point.tier;
        break;
    }
  }
  /// The same bytes, in the middle of which the process dies.
  static ByteSpan Trap(ByteSpan bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t size = (bytes.size() + page - 1) / page * page, half = size / page / 2 * page;
    auto* memory =
        static_cast<std::byte*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::ranges::copy(bytes, memory);
    mprotect(memory + half, size - half, PROT_NONE);
    struct sigaction action{};
    action.sa_handler = [](int) { Die(); };
    sigaction(SIGSEGV, &action, nullptr);
    return {memory, bytes.size()};
  }

  Told& told_;
  const std::shared_ptr<SocketGroup> group_, disk_group_;
  const std::shared_ptr<object::FaultStore> store_;
  FakeClock clock_;  ///< nobody waits before asking again
  LocalTierOptions tier_;
  std::shared_ptr<PeerMachines> machines_;
  StoreConnection connection_{store_};
  MemoryBudget budget_{64 * kMiB};
  std::optional<CheckpointTier> dies_at_commit_;
  std::function<void()> act_ = [] { Die(); };  ///< where the victim dies
  std::latch beside_{1};                       ///< the victim's other save is under way
};

class CheckpointRanksTest : public ::testing::TestWithParam<Phase> {
 protected:
  CheckpointRanksTest()
      : told_(static_cast<Told*>(
            mmap(nullptr, kRanks * sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~CheckpointRanksTest() override { munmap(told_, kRanks * sizeof(Told)); }

  using Sockets = std::vector<std::vector<int>>;  ///< by rank, and by whom they lead to
  static Sockets Connect() {
    Sockets peers(kRanks, std::vector<int>(kRanks, -1));
    for (int other = 1; other < kRanks; ++other) {
      int pair[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
      peers[0][other] = pair[0];
      peers[other][0] = pair[1];
    }
    return peers;
  }

  /// All ranks from start to end; how each ended, as waitpid has it. `victim`: one of them dies in its phase.
  std::vector<int> Live(const std::string& folder, Disks disks, std::optional<int> victim = {}) {
    const Sockets of_store = Connect(), of_disk = Connect();
    const Beside beside = victim ? GetParam().beside : Beside::kNothing;
    std::fill_n(told_, kRanks, Told{});
    std::vector<pid_t> children;
    for (int rank = 0; rank < kRanks; ++rank) {
      children.push_back(fork());
      if (children.back() != 0) continue;
      for (int other = 0; other < kRanks; ++other) {
        if (other == rank) continue;
        CloseAll(of_store[other]);
        CloseAll(of_disk[other]);
      }
      alarm(30);  // nobody may hang
      const rlimit no_core{0, 0};
      setrlimit(RLIMIT_CORE, &no_core);
      const Groups groups{std::make_shared<SocketGroup>(rank, of_store[rank]),
                          std::make_shared<SocketGroup>(rank, of_disk[rank])};
      const bool lived = Rank(groups, folder, disks, told_[rank]).Live(beside, rank == victim ? &GetParam() : nullptr);
      _exit(lived ? 0 : 1);
    }
    for (const Sockets& peers : {of_store, of_disk})
      for (const auto& mine : peers) CloseAll(mine);
    std::vector<int> ends(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(waitpid(children[rank], &ends[rank], 0), children[rank]);
    return ends;
  }
  static void CloseAll(const std::vector<int>& sockets) {
    for (int socket : sockets)
      if (socket >= 0) close(socket);
  }

  static std::vector<std::uint64_t> Steps(const object::Location& root) {
    std::vector<std::uint64_t> steps;
    const auto entries = ListCheckpoints(root);
    EXPECT_TRUE(entries);
    for (const ListedCheckpoint& entry : *entries) steps.push_back(entry.step);
    return steps;
  }
  static object::Location Bucket(const std::string& folder) {
    return {*object::OpenFileStore({.root = folder + "/bucket", .durable = false, .threads = 1}), "run"};
  }
  static void ExpectWhole(const std::string& folder, std::uint64_t step) {
    StoreConnection connection(Bucket(folder).store);
    auto reader = Reader::Open(connection, kUrl, step);
    ASSERT_TRUE(reader) << reader.error().ToString();
    EXPECT_TRUE((*reader)->Verify(1));
    StateOf(step).ExpectReadBack(**reader, 1);
  }
  /// Manifests, fences and the files of these steps are all that is there.
  static void ExpectNothingElse(const std::string& folder, const std::vector<std::uint64_t>& steps) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      const std::string path = entry.path().string();
      const bool wanted = std::ranges::any_of(
          steps, [&](std::uint64_t step) { return path.find(fmt::format("/step-{:08}/", step)) != std::string::npos; });
      const bool of_the_machine = path.ends_with("/.millrace-machine") || path.ends_with("/.millrace-folder");
      EXPECT_TRUE(!entry.is_regular_file() || wanted || path.ends_with(".json") || of_the_machine) << path;
    }
  }

  Told* const told_;
};

TEST_P(CheckpointRanksTest, MayBeKilledHere) {
  const Phase& phase = GetParam();
  for (int victim = 0; victim < (phase.other ? kRanks : 1); ++victim) {
    SCOPED_TRACE(fmt::format("rank {}", victim));
    const TempDir directory = *TempDir::Create();
    const std::string folder = directory.path().string();
    const Committed expected = victim == 0 ? phase.rank_0 : *phase.other;
    const auto ends = Live(folder, phase.disks, victim);
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) {
        EXPECT_TRUE(WIFSIGNALED(ends[rank])) << "the phase was not reached";
        EXPECT_EQ(WTERMSIG(ends[rank]), phase.point.at == At::kFileSize ? SIGXFSZ : SIGKILL);
      } else {
        EXPECT_TRUE(WIFEXITED(ends[rank])) << "rank " << rank << " ended by signal " << WTERMSIG(ends[rank]);
      }
      EXPECT_TRUE(told_[rank].committed < 20 || expected == kStore) << "what is said to be committed is";
    }
    const auto steps = Steps(Bucket(folder));
    EXPECT_EQ(std::ranges::count(steps, 20), expected == kStore);
    EXPECT_TRUE(expected == kStore || std::ranges::count(steps, 10) == 1);
    for (std::uint64_t step : steps) ExpectWhole(folder, step);

    if (phase.disks == Disks::kLost) std::filesystem::remove_all(folder + fmt::format("/disk/{}", victim));
    for (int end : Live(folder, phase.disks)) EXPECT_EQ(end, 0);
    std::uint64_t resumed = expected == kNowhere ? 10 : phase.beside == Beside::kUpload ? 30 : 20;
    if (expected == kPerhapsDisk && told_[0].resumed == 10) resumed = 10;
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(told_[rank].resumed, resumed) << "the newest commit, wherever it is";
      EXPECT_TRUE(told_[rank].right);
    }
    EXPECT_EQ(Steps(Bucket(folder)), std::vector{resumed + 20});
    for (int machine = 0; machine < (phase.disks == Disks::kShared ? 1 : kRanks); ++machine) {
      const std::string disk = folder + (phase.disks == Disks::kShared ? "/disk" : fmt::format("/disk/{}", machine));
      EXPECT_EQ(Steps(*LocateLocal({disk}, kUrl)), (std::vector{resumed + 10, resumed + 20}));
    }
    ExpectWhole(folder, resumed + 20);
    ExpectNothingElse(folder + "/bucket", {resumed + 20});
    ExpectNothingElse(folder + "/disk", {resumed + 10, resumed + 20});
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Phases, CheckpointRanksTest, ::testing::ValuesIn(kPhases),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(PeerMachines, CheckpointRanksTest, ::testing::ValuesIn(kMachinePhases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace millrace::checkpoint
