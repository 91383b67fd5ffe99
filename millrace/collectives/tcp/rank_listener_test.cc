#include "millrace/collectives/tcp/rank_listener.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace millrace::collectives {
namespace {

RankKey TestKey() { return RankKey::Derive(SecretBytes(AsBytes("a secret of tests")), "start"); }

/// A listener on loopback whose clock stands still.
class RankListenerTest : public testing::Test {
 protected:
  RankListener Open(RankListener::Limits limits) {
    return RankListener::Open(SocketAddress::Parse("127.0.0.1", 0).value(), TestKey(), limits, clock_).value();
  }
  /// Connects from an address of this machine, and says nothing.
  static UniqueFd Stranger(const RankListener& listener, const std::string& from = "127.0.0.1") {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const SocketAddress own = SocketAddress::Parse(from, 0).value();
    EXPECT_EQ(::bind(fd.get(), own.data(), own.size()), 0);
    (void)::connect(fd.get(), listener.address().data(), listener.address().size());
    return fd;
  }
  static bool IsEnded(const UniqueFd& fd) {
    char byte;
    return ::recv(fd.get(), &byte, 1, 0) == 0;
  }
  static void Turn(RankListener& listener) {
    listener.Turn([](UniqueFd, const ConnectionRequest&) { FAIL() << "nobody has proved the key"; });
  }

  FakeClock clock_;
};

TEST_F(RankListenerTest, LetsInWhoHasTheKey) {
  RankListener listener = RankListener::Open(SocketAddress::Parse("127.0.0.1", 0).value(), TestKey(), {}).value();
  const ConnectionRequest request{std::byte{7}};
  Result<UniqueFd> connected = Fail(Code::kInternal, "not yet");
  std::jthread client([&] {
    connected = ConnectProved(listener.address(), TestKey(), request, NobodyListens::kFails,
                              SystemClock().Now() + std::chrono::seconds(20), {});
  });
  UniqueFd admitted;
  while (!admitted) {
    std::vector<pollfd> waits;
    listener.AppendWaits(waits);
    ASSERT_GT(::poll(waits.data(), waits.size(), 20'000), 0);
    listener.Turn([&](UniqueFd fd, const ConnectionRequest& asked) {
      EXPECT_EQ(asked, request);
      admitted = std::move(fd);
    });
  }
  client.join();
  ASSERT_TRUE(connected) << connected.error().ToString();
  EXPECT_EQ(listener.unproved(), 0u);
  EXPECT_EQ(::send(connected->get(), "x", 1, 0), 1);
  char byte = 0;
  while (::recv(admitted.get(), &byte, 1, 0) < 0) std::this_thread::yield();
  EXPECT_EQ(byte, 'x');
}

TEST_F(RankListenerTest, TellsAnotherKeyApart) {
  RankListener listener = RankListener::Open(SocketAddress::Parse("127.0.0.1", 0).value(), TestKey(), {}).value();
  std::jthread loop([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      Turn(listener);
      std::this_thread::yield();
    }
  });
  const RankKey other = RankKey::Derive(SecretBytes(AsBytes("a secret of tests")), "another start");
  const auto refused = ConnectProved(listener.address(), other, {}, NobodyListens::kFails,
                                     SystemClock().Now() + std::chrono::seconds(20), {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kPermissionDenied);
  EXPECT_NE(refused.error().ToString().find("MILLRACE_RANK_SECRET"), std::string::npos);
}

TEST_F(RankListenerTest, EndsTheOldestOfOneAddress) {
  RankListener listener = Open({.connections = 100, .of_one_address = 3});
  std::vector<UniqueFd> same;
  const UniqueFd other = Stranger(listener, "127.0.0.2");
  for (int i = 0; i < 5; ++i) same.push_back(Stranger(listener));
  Turn(listener);
  EXPECT_EQ(listener.unproved(), 4u);
  for (std::size_t i = 0; i < same.size(); ++i) EXPECT_EQ(IsEnded(same[i]), i < 2) << i;
  EXPECT_FALSE(IsEnded(other));
}

TEST_F(RankListenerTest, EndsTheOldestOfTheBusiestAddress) {
  RankListener listener = Open({.connections = 4, .of_one_address = 4});
  const UniqueFd early = Stranger(listener, "127.0.0.2");
  std::vector<UniqueFd> busy;
  for (int i = 0; i < 3; ++i) busy.push_back(Stranger(listener));
  const UniqueFd late = Stranger(listener, "127.0.0.3");
  Turn(listener);  // takes as many as there is room for
  Turn(listener);
  EXPECT_EQ(listener.unproved(), 4u);
  EXPECT_TRUE(IsEnded(busy[0]));
  for (const auto& fd :
       {std::cref(early), std::cref(std::as_const(busy[1])), std::cref(std::as_const(busy[2])), std::cref(late)}) {
    EXPECT_FALSE(IsEnded(fd));
  }
}

TEST_F(RankListenerTest, EndsWhoIsSilentForTooLong) {
  RankListener listener = Open({.time = std::chrono::seconds(10)});
  EXPECT_EQ(listener.MillisecondsToNextTurn(), -1);
  const UniqueFd silent = Stranger(listener);
  Turn(listener);
  EXPECT_GT(listener.MillisecondsToNextTurn(), 9'000);
  clock_.Advance(std::chrono::seconds(9));
  Turn(listener);
  EXPECT_FALSE(IsEnded(silent));
  clock_.Advance(std::chrono::seconds(1));
  Turn(listener);
  EXPECT_TRUE(IsEnded(silent));
  EXPECT_EQ(listener.unproved(), 0u);
}

TEST_F(RankListenerTest, NamesAPortThatAnotherProgramHas) {
  const RankListener first = Open({});
  const auto second = RankListener::Open(first.address(), TestKey(), {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), Code::kUnavailable);
  EXPECT_NE(second.error().ToString().find(std::to_string(first.address().port())), std::string::npos);
}

TEST(ListenAddress, IsWhereTheOthersReachIt) {
  const auto at = [](const std::string& text) { return SocketAddress::Parse(text, 0).value(); };
  const auto chosen = [&](const std::string& host, const std::string& local, const std::string& remote,
                          bool is_master) {
    return ListenAddress(host, {.local = at(local), .remote = at(remote)}, is_master).host();
  };
  EXPECT_EQ(chosen("127.0.0.1", "127.0.0.1", "127.0.0.1", true), "127.0.0.1");
  EXPECT_EQ(chosen("localhost", "127.0.0.1", "127.0.0.1", false), "127.0.0.1");
  EXPECT_EQ(chosen("10.0.0.1", "10.0.0.1", "10.0.0.1", true), "10.0.0.1");
  EXPECT_EQ(chosen("10.0.0.1", "10.0.0.2", "10.0.0.1", false), "10.0.0.2");
  EXPECT_EQ(chosen("node-1", "127.0.0.1", "127.0.1.1", true), "0.0.0.0") << "as on Debian";
  EXPECT_EQ(chosen("virtual", "10.0.0.2", "10.9.9.9", true), "0.0.0.0") << "others reach it otherwise";
}

}  // namespace
}  // namespace millrace::collectives
