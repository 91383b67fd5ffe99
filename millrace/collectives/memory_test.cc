#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/collectives/connect.h"
#include "millrace/collectives/presence.h"
#include "millrace/collectives/segment.h"
#include "millrace/collectives/shared_counter.h"
#include "millrace/collectives/testing/array.h"
#include "millrace/collectives/testing/run_ranks.h"

namespace millrace::collectives {
namespace {

TEST(Segment, LeavesNoNameBehind) {
  auto made = Segment::Create(4096);
  ASSERT_TRUE(made) << made.error().ToString();
  const std::string name = (*made)->name();
  auto attached = Segment::Attach(name, 4096);
  ASSERT_TRUE(attached) << attached.error().ToString();
  (*made)->data()[7] = std::byte{42};
  EXPECT_EQ((*attached)->data()[7], std::byte{42});
  (*made)->Unlink();
  EXPECT_FALSE(Segment::Attach(name, 4096));
  made->reset();
  EXPECT_EQ((*attached)->data()[7], std::byte{42}) << "the memory stays";

  made = Segment::Create(4096);
  ASSERT_TRUE(made);
  const std::string second = (*made)->name();
  made->reset();
  EXPECT_FALSE(Segment::Attach(second, 4096)) << "the creator removes the name";
}

TEST(SharedCounter, WakesThoseWhoWait) {
  SharedCounter counter;
  std::jthread waiter([&] {
    while (!counter.AwaitFor(3, {}, std::chrono::seconds(10))) {
    }
  });
  for (std::uint32_t i = 1; i <= 3; ++i) counter.Raise(i);
  waiter.join();
  EXPECT_TRUE(counter.Reached(2));
  EXPECT_FALSE(counter.Reached(4));
  counter.Raise(0xffff'ffff);
  EXPECT_FALSE(counter.Reached(1)) << "counts modulo 2^32";
  counter.Raise(1);
  EXPECT_TRUE(counter.Reached(0xffff'ffff));
}

TEST(SharedPresence, FollowsARank) {
  const auto segment = Segment::CreatePrivate(sizeof(SharedPresence)).value();
  auto& presence = *reinterpret_cast<SharedPresence*>(segment->data());
  presence.Initialize();
  EXPECT_EQ(presence.Look(), SharedPresence::State::kExpected);
  {
    const PresenceHolder holder(presence);
    EXPECT_EQ(presence.Look(), SharedPresence::State::kPresent);
  }
  EXPECT_EQ(presence.Look(), SharedPresence::State::kLeft);
}

/// The names of the variables by which a test starts itself as another rank.
constexpr const char* kPeerPort = "MILLRACE_TEST_PEER_PORT";

Result<std::unique_ptr<Collective>> ConnectPair(int rank, int port) {
  return ConnectRanks({.rank = rank, .size = 2, .local_rank = rank, .local_size = 2, .master_port = port},
                      std::chrono::seconds(60));
}

TEST(SharedMemoryProcess, Peer) {
  const char* port = std::getenv(kPeerPort);
  if (port == nullptr) GTEST_SKIP() << "runs as the peer of AKilledRankIsNoticed";
  auto group = ConnectPair(1, std::atoi(port));
  ASSERT_TRUE(group) << group.error().ToString();
  while ((*group)->AllReduce(Array<float>(1'000'000, 1))) {
  }
}

TEST(SharedMemoryProcess, AKilledRankIsNoticed) {
  const int port = FreePort();
  auto peer = Subprocess::Start({.argv = {"/proc/self/exe", "--gtest_filter=SharedMemoryProcess.Peer"},
                                 .env = {{kPeerPort, std::to_string(port)}},
                                 .stdout_file = "/dev/null"});
  ASSERT_TRUE(peer) << peer.error().ToString();
  auto group = ConnectPair(0, port);
  ASSERT_TRUE(group) << group.error().ToString();
  for (int i = 0; i < 3; ++i) {
    const Array<float> numbers(1'000'000, 1);
    ASSERT_TRUE((*group)->AllReduce(numbers));
    EXPECT_EQ(numbers.values().back(), 2);
  }
  // All names in /dev/shm are gone by now, so that nothing is left behind.
  const auto maps = ReadFile("/proc/self/maps");
  ASSERT_TRUE(maps);
  const std::size_t mapped = maps->find("/dev/shm/millrace-");
  ASSERT_NE(mapped, std::string::npos) << "the group does not use shared memory";
  EXPECT_NE(maps->substr(mapped, maps->find('\n', mapped) - mapped).find("(deleted)"), std::string::npos);

  peer->Signal(SIGKILL);
  ASSERT_EQ(peer->Wait()->signal, SIGKILL);
  const TimePoint killed = SystemClock().Now();
  Status status;
  while (status) status = (*group)->AllReduce(Array<float>(1'000'000, 1));  // the peer may have begun one more
  EXPECT_LT(SystemClock().Now() - killed, std::chrono::seconds(2));
  EXPECT_EQ(status.error().code(), Code::kUnavailable);
  EXPECT_NE(status.error().ToString().find("the process of rank 1 has ended"), std::string::npos)
      << status.error().ToString();
}

}  // namespace
}  // namespace millrace::collectives
