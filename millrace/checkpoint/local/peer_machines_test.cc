// A run on several machines, each with a disk of its own: threads are the ranks, folders the disks.
#include "millrace/checkpoint/local/peer_machines.h"
#include "millrace/checkpoint/local/local_tier.h"
#include "millrace/checkpoint/save/local_folder.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/random_state.h"
#include "millrace/checkpoint/testing/thread_group.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::State;
using testing::ThreadRanks;

constexpr const char* kRunOnMachines = "s3://bucket/run";

class MachinesTest : public ::testing::Test {
 protected:
  /// The ranks of one start of a run, each on its machine, through all of its life: what goes wrong on one is told.
  struct Start {
    std::vector<int> machine_of;  ///< of each rank
    int copies = 2;
    int keep = 2;
  };
  struct MachineTier {
    LocalTierOptions options;
    std::shared_ptr<PeerMachines> machines;
  };
  using Life = std::function<void(int rank, RankExchange& group, const MachineTier& tier)>;
  void Run(const Start& start, const Life& life) {
    ThreadRanks ranks(static_cast<int>(start.machine_of.size()));
    std::vector<std::thread> threads;
    for (int rank = 0; std::cmp_less(rank, start.machine_of.size()); ++rank) {
      threads.emplace_back([&, rank] {
        const auto group = ranks.Rank(rank);
        MachineTier tier{{Disk(start.machine_of[rank]), start.keep, start.copies}, nullptr};
        if (!meeting_points_.empty()) tier.options.meeting_point = meeting_points_[rank];
        auto met = PeerMachines::Connect(*group, tier.options, kRunOnMachines, clock_);
        EXPECT_TRUE(met) << met.error().ToString();
        if (!met) return ranks.Break();
        tier.machines = *met;
        life(rank, *group, tier);
        EXPECT_TRUE(group->Gather("")) << "nobody's disk goes before all are through";
        std::ignore = group->Broadcast("");
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  std::string Disk(int machine) const { return directory_.path() / fmt::format("machine-{}", machine); }
  fs::path RunFolder(int machine) const { return "/" + LocateLocal({Disk(machine)}, kRunOnMachines)->key; }

  /// One start that saves state number `step` for each of `steps`; yields whether all were saved everywhere.
  bool Save(const Start& start, std::vector<std::uint64_t> steps, SaveOptions options) {
    std::atomic<bool> good = true;
    Run(start, [&](int rank, RankExchange& group, const MachineTier& tier) {
      auto open = OpenNewest(connection_, group, kRunOnMachines, tier.options, tier.machines, Logger());
      EXPECT_TRUE(open) << open.error().ToString();
      // The writer's group is used by its thread alone.
      std::shared_ptr<RankExchange> shared(&group, [](RankExchange*) {});
      auto writer = Writer::Open(connection_, shared, budget_,
                                 {.url = kRunOnMachines, .local = tier.options, .local_peers = tier.machines});
      for (const std::uint64_t step : steps) {
        const State state = StateOf(step);
        const auto shares = state.Share(static_cast<int>(start.machine_of.size()), step);
        EXPECT_TRUE((*writer)->Save(step, shares[rank], {}, options));
        if (!(*writer)->Wait()) good = false;
      }
    });
    return good;
  }
  static State StateOf(std::uint64_t step) { return State::Random(step, 6, 20'000); }

  /// What every rank of a new start opens, which must be the same and right.
  std::string Newest(const Start& start) {
    std::map<int, std::string> what;
    Run(start, [&](int rank, RankExchange& group, const MachineTier& tier) {
      auto newest = OpenNewest(connection_, group, kRunOnMachines, tier.options, tier.machines, Logger());
      EXPECT_TRUE(newest) << newest.error().ToString();
      std::string mine = "none";
      if (newest->reader) {
        const std::uint64_t step = newest->reader->manifest().step;
        StateOf(step).ExpectReadBack(*newest->reader, 2);
        mine = fmt::format("{} {}", newest->tier == CheckpointTier::kLocal ? "local" : "store", step);
      }
      MutexLock lock(mutex_);
      what[rank] = mine;
    });
    for (const auto& [rank, mine] : what) EXPECT_EQ(mine, what[0]) << "rank " << rank;
    return what[0];
  }
  /// Changes a byte of a machine's copy of a rank's file.
  void Damage(int machine, std::uint64_t step, int rank) {
    int damaged = 0;
    for (const auto& entry : fs::recursive_directory_iterator(RunFolder(machine))) {
      const std::string path = entry.path();
      if (!path.ends_with(fmt::format("/rank-{:05}.safetensors", rank)) ||
          path.find(fmt::format("/step-{:08}/", step)) == path.npos)
        continue;
      std::string bytes = *ReadFile(path, 64 * kMiB);
      bytes.back() = static_cast<char>(bytes.back() ^ 1);
      ASSERT_TRUE(WriteFileAtomic(path, AsBytes(bytes)));
      ++damaged;
    }
    ASSERT_EQ(damaged, 1);
  }
  /// Names of a machine's files of the run: "step-00000010.json", "step-00000010/rank-00001.safetensors".
  std::vector<std::string> Files(int machine) const {
    std::vector<std::string> names;
    if (!fs::exists(RunFolder(machine))) return names;
    for (const auto& entry : fs::recursive_directory_iterator(RunFolder(machine))) {
      if (!entry.is_regular_file() || entry.file_size() < 128) continue;  // fences
      const std::string name = fs::relative(entry.path(), RunFolder(machine));
      const std::size_t folder = name.find('/');
      names.push_back(folder == name.npos ? name : name.substr(0, folder) + name.substr(name.rfind('/')));
    }
    std::ranges::sort(names);
    return names;
  }

  TempDir directory_ = *TempDir::Create();
  std::vector<std::string> meeting_points_;  ///< of each rank; empty: all meet on loopback
  FakeClock clock_;
  MemoryBudget budget_{256 * kMiB};
  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore({});
  testing::StoreConnection connection_{store_};
  const SaveOptions local_{.to_store = false, .to_local = true}, both_{.to_local = true};
  const Start three_{.machine_of = {0, 0, 1, 1, 2, 2}};
  Mutex mutex_;
};

TEST_F(MachinesTest, OneFolderForAllIsOneMachine) {
  Run({.machine_of = {0, 0, 0}},
      [](int, RankExchange&, const MachineTier& tier) { EXPECT_EQ(tier.machines, nullptr); });
  Run({.machine_of = {0, 1}, .copies = 1}, [](int, RankExchange&, const MachineTier& tier) {
    EXPECT_EQ(tier.machines, nullptr) << "nothing is served unless told";
  });
  Run(three_, [](int rank, RankExchange&, const MachineTier& tier) {
    ASSERT_NE(tier.machines, nullptr);
    EXPECT_EQ(tier.machines->count(), 3);
    EXPECT_EQ(tier.machines->is_machine_leader(), rank % 2 == 0);
  });
}

TEST_F(MachinesTest, EveryFileIsOnTwoMachinesAndTheManifestOnAll) {
  ASSERT_TRUE(Save(three_, {10}, local_));
  auto files = [](const std::string& a, const std::string& b, const std::string& c, const std::string& d) {
    auto name = [](const std::string& rank) { return "step-00000010/rank-0000" + rank + ".safetensors"; };
    return ElementsAre("step-00000010.json", name(a), name(b), name(c), name(d));
  };
  EXPECT_THAT(Files(0), files("0", "1", "4", "5"));
  EXPECT_THAT(Files(1), files("0", "1", "2", "3"));
  EXPECT_THAT(Files(2), files("2", "3", "4", "5"));
  EXPECT_EQ(Newest(three_), "local 10");
}

TEST_F(MachinesTest, AMachineCanBeLost) {
  for (int lost = 0; lost < 3; ++lost) {
    const std::uint64_t step = 10 * static_cast<std::uint64_t>(lost + 1);
    ASSERT_TRUE(Save(three_, {step}, local_));
    fs::remove_all(Disk(lost));
    EXPECT_EQ(Newest(three_), fmt::format("local {}", step)) << "without machine " << lost;
  }
  ASSERT_TRUE(Save(three_, {40}, both_));
  ASSERT_TRUE(Save(three_, {50}, local_));
  fs::remove_all(Disk(0));
  fs::remove_all(Disk(1));
  EXPECT_EQ(Newest(three_), "store 40") << "two of them had the only copies";
  for (int machine = 0; machine < 3; ++machine)
    EXPECT_THAT(Files(machine), Not(Contains(HasSubstr("00000050.json")))) << "the run comes there again";
  ASSERT_TRUE(Save(three_, {50}, local_));
  EXPECT_EQ(Newest(three_), "local 50");
}

TEST_F(MachinesTest, AnyRanksGoOnFromWhatIsThere) {
  ASSERT_TRUE(Save(three_, {10}, local_));
  EXPECT_EQ(Newest({.machine_of = {2, 0, 2}}), "local 10") << "fewer ranks on two of the machines";
  EXPECT_EQ(Newest({.machine_of = {5, 4, 1, 0}}), "local 10") << "new machines among them";
  EXPECT_EQ(Newest({.machine_of = {7, 8}}), "none");
}

TEST_F(MachinesTest, RetentionGoesThroughAllDisks) {
  ASSERT_TRUE(Save(three_, {10, 20, 30, 40}, local_));
  for (int machine = 0; machine < 3; ++machine) {
    int manifests = 0;
    for (const std::string& file : Files(machine)) {
      EXPECT_TRUE(file.starts_with("step-00000030") || file.starts_with("step-00000040")) << file;
      manifests += file.ends_with(".json");
    }
    EXPECT_EQ(manifests, 2);
  }
}

TEST_F(MachinesTest, OneManifestIsEnough) {
  ASSERT_TRUE(Save(three_, {10, 20}, local_));
  // As if rank 0 had been killed after the commit, before the others got it.
  for (int machine : {1, 2}) fs::remove(RunFolder(machine) / "step-00000020.json");
  EXPECT_EQ(Newest(three_), "local 20");
  fs::remove(RunFolder(0) / "step-00000020.json");
  EXPECT_EQ(Newest(three_), "local 10") << "not committed";
}

TEST_F(MachinesTest, AGoodCopyMakesUpForADamagedOne) {
  ASSERT_TRUE(Save(three_, {10, 20}, local_));
  Damage(1, 20, 2);
  EXPECT_EQ(Newest(three_), "local 20") << "machine 2 has a good one";
  Damage(2, 20, 4);
  EXPECT_EQ(Newest(three_), "local 20") << "likewise machine 0, of another file";
  Damage(2, 20, 2);
  EXPECT_EQ(Newest(three_), "local 10") << "both copies are gone";
}

TEST_F(MachinesTest, AMachineThatMissedSavesComesBack) {
  ASSERT_TRUE(Save(three_, {10, 20}, local_));
  fs::rename(Disk(2), Disk(9));
  EXPECT_EQ(Newest(three_), "local 20");
  for (int machine : {0, 1}) fs::remove(RunFolder(machine) / "step-00000020.json");
  ASSERT_TRUE(Save(three_, {20}, local_)) << "once more, from step 10";
  fs::remove_all(Disk(2));
  fs::rename(Disk(9), Disk(2));
  EXPECT_EQ(Newest(three_), "local 20") << "of both attempts at the step the later one";
}

TEST_F(MachinesTest, ASaveThatCannotBeCopiedFailsOnAllRanks) {
  clock_.AdvanceOnSleep(true);
  ASSERT_TRUE(Save(three_, {10}, local_));
  Run(three_, [&](int rank, RankExchange& group, const MachineTier& tier) {
    const std::string step = RunFolder(2) / "step-00000020";
    if (rank == 4) {
      ASSERT_TRUE(WriteFileAtomic(step, AsBytes("a file where the folder should be")));
    }
    ASSERT_TRUE(group.Gather(""));
    ASSERT_TRUE(group.Broadcast(""));
    std::shared_ptr<RankExchange> shared(&group, [](RankExchange*) {});
    auto writer = *Writer::Open(connection_, shared, budget_,
                                {.url = kRunOnMachines, .local = tier.options, .local_peers = tier.machines});
    const State state = StateOf(20);
    const auto shares = state.Share(6, 20);
    EXPECT_TRUE(writer->Save(20, shares[rank], {}, local_));
    EXPECT_FALSE(writer->Wait()) << rank;
  });
  EXPECT_EQ(Newest(three_), "local 10");
}

/// This machine's address on the way to a public one (nothing is sent); empty where it has no network.
std::string OutwardAddress() {
  const UniqueFd way(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {htonl(0xc6336401)}};  // 198.51.100.1
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  char name[INET_ADDRSTRLEN];
  if (::connect(way.get(), generic, length) != 0 || ::getsockname(way.get(), generic, &length) != 0 ||
      ::inet_ntop(AF_INET, &address.sin_addr, name, sizeof name) == nullptr) {
    return "";
  }
  return name;
}

TEST_F(MachinesTest, ServesWhereTheOthersReachItAndNowhereElse) {
  const std::string outward = OutwardAddress();
  if (outward.empty() || outward.starts_with("127.")) GTEST_SKIP() << "this machine has no address but loopback";
  // The first machine knows its own name as loopback, as Debian's /etc/hosts has it; the second knows better.
  meeting_points_ = {"127.0.0.1", outward};
  Run({{0, 1}}, [&](int rank, RankExchange&, const MachineTier& tier) {
    ASSERT_EQ(tier.machines->count(), 2);
    if (rank != 0) return;
    const std::string& mine = tier.machines->endpoints()[0];
    EXPECT_THAT(mine, ::testing::StartsWith(outward + ":"));
    http::Client client({.loops = 1});
    EXPECT_TRUE(client.Send({.url = "http://" + mine + "/"}, {}, {}));
    EXPECT_FALSE(client.Send({.url = "http://127.0.0.1" + mine.substr(mine.rfind(':')) + "/"}, {}, {}));
  });
}

TEST_F(MachinesTest, StrangersGetNothing) {
  ASSERT_TRUE(Save(three_, {10}, local_));
  ASSERT_TRUE(WriteFileAtomic(fs::path(Disk(0)) / "secret", AsBytes("not of the run")));
  Run(three_, [&](int rank, RankExchange&, const MachineTier& tier) {
    if (rank != 0) return;
    http::Client client({});
    auto ask = [&](const std::string& method, const std::string& path, const std::string& authorization) {
      http::Request request{.method = method, .url = fmt::format("http://{}{}", tier.machines->endpoints()[1], path)};
      if (!authorization.empty()) request.headers.Set("Authorization", authorization);
      return client.Send(request)->status;
    };
    for (const std::string& authorization : {std::string(), std::string("Bearer "), "Bearer " + std::string(64, '0')}) {
      EXPECT_EQ(ask("GET", "/step-00000010.json?from=0&bytes=1", authorization), 403);
      EXPECT_EQ(ask("PUT", "/step-00000011.json", authorization), 403);
    }
    std::byte into[1];
    for (const std::string name : {"../secret", "/../secret", "..%2fsecret", "nothing", "step-00000010"}) {
      const Status got = tier.machines->Fetch(0, name, 0, into, {});
      ASSERT_FALSE(got) << name;
      EXPECT_EQ(got.error().code(), Code::kInvalidArgument) << name << ": " << got.error().ToString();
    }
    const Status out = tier.machines->Fetch(0, "step-00000010/0123456789abcdef/../../../secret", 0, into, {});
    ASSERT_FALSE(out);
    EXPECT_EQ(out.error().code(), Code::kNotFound) << out.error().ToString();
    const Status beyond = tier.machines->Fetch(1, "step-00000010.json", kGiB, into, {});
    ASSERT_FALSE(beyond);
    EXPECT_EQ(beyond.error().code(), Code::kInvalidArgument);
  });
  EXPECT_THAT(Files(1), Not(Contains("step-00000011.json")));
}

}  // namespace
}  // namespace millrace::checkpoint
