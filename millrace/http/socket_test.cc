#include "millrace/http/socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>

namespace millrace::http {
namespace {

using namespace std::chrono_literals;

/// Moves on by a second whenever it is looked at.
class SteppingClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(1s * ++looks_); }
  WallTime Wall() const override { return {}; }
  bool SleepUntil(TimePoint, std::stop_token) override { return true; }

 private:
  mutable std::atomic<int> looks_ = 0;
};

/// A socket under test, and the client's end of its connection.
struct SocketPair {
  explicit SocketPair(WaitLimits limits) {
    int fds[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    server = std::make_unique<Socket>(UniqueFd(fds[0]), limits, clock);
    client = UniqueFd(fds[1]);
  }
  void SendByte() const { EXPECT_EQ(write(client.get(), "x", 1), 1); }
  Result<std::size_t> Receive() const {
    std::byte byte{};
    return server->Receive(MutableByteSpan(&byte, 1));
  }

  SteppingClock clock;
  std::unique_ptr<Socket> server;
  UniqueFd client;
};

TEST(Socket, TheWaitsOfOneBodyAddUp) {
  SocketPair pair({.stall = 10s, .min_bytes_per_s = 1000});
  for (int i = 0; i < 11; ++i) {
    pair.SendByte();
    ASSERT_TRUE(pair.Receive());
  }
  EXPECT_EQ(pair.Receive().error().code(), Code::kDeadlineExceeded) << "each byte started a new time-out";
  pair.server->StartRequest();
  pair.SendByte();
  EXPECT_TRUE(pair.Receive());
}

TEST(Socket, BytesThatComeFastEnoughGiveTime) {
  SocketPair pair({.stall = 3s, .min_bytes_per_s = 1});
  for (int i = 0; i < 100; ++i) {
    pair.SendByte();
    ASSERT_TRUE(pair.Receive());
    pair.SendByte();
    ASSERT_TRUE(pair.Receive());
  }
}

TEST(Socket, AnAnswerThatNobodyReadsEnds) {
  SocketPair pair({.stall = 500ms});
  const std::string filling(8 << 20, 'x');
  EXPECT_EQ(pair.server->Send(AsBytes(filling), {}, false).error().code(), Code::kDeadlineExceeded);
}

}  // namespace
}  // namespace millrace::http
