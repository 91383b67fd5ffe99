#include "millrace/collectives/rendezvous/local_secret.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <thread>
#include <utility>

#include "millrace/collectives/testing/run_ranks.h"

namespace millrace::collectives {
namespace {

TEST(LocalSecret, IsTheSameForAllRanks) {
  const int port = FreePort();
  const auto served = LocalSecret::Serve(port).value();
  EXPECT_EQ(served->secret().span().size(), 32u);
  for (int i = 0; i < 3; ++i) {
    const auto fetched = LocalSecret::Fetch(port, Soon());
    ASSERT_TRUE(fetched) << fetched.error().ToString();
    EXPECT_TRUE(std::ranges::equal(fetched->span(), served->secret().span()));
  }
}

TEST(LocalSecret, IsAwaited) {
  const int port = FreePort();
  std::jthread waiter([&] { EXPECT_TRUE(LocalSecret::Fetch(port, Soon())); });
  const auto served = LocalSecret::Serve(port).value();
  waiter.join();
}

TEST(LocalSecret, IsAnotherForEachStart) {
  const int port = FreePort();
  auto first = LocalSecret::Serve(port).value();
  const SecretBytes secret = first->secret();
  EXPECT_EQ(LocalSecret::Serve(port).error().code(), Code::kUnavailable) << "one at a time";
  first.reset();
  const auto second = LocalSecret::Serve(port).value();
  EXPECT_FALSE(std::ranges::equal(secret.span(), second->secret().span()));
}

TEST(LocalSecret, AWaitEnds) {
  const auto never = LocalSecret::Fetch(FreePort(), SystemClock().Now() + std::chrono::milliseconds(5));
  ASSERT_FALSE(never);
  EXPECT_EQ(never.error().code(), Code::kUnavailable);
  EXPECT_NE(never.error().ToString().find("rank 0"), std::string::npos);
}

/// The socket's address of user 0, and a process of another user that does `work` with a socket. Its exit status is
/// what `work` returns.
class OtherUser {
 public:
  OtherUser(int port, int (*work)(int fd, const sockaddr* address, socklen_t size)) {
    const std::string name = fmt::format("millrace-ranks/0/{}", port);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::ranges::copy(name, address.sun_path + 1);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    child_ = ::fork();
    if (child_ != 0) return;
    constexpr uid_t kNobody = 65'534;
    if (::setuid(kNobody) != 0) ::_exit(9);
    ::_exit(work(::socket(AF_UNIX, SOCK_STREAM, 0), reinterpret_cast<const sockaddr*>(&address), size));
  }
  ~OtherUser() { (void)End(); }
  int Wait() {
    int status = 0;
    ::waitpid(std::exchange(child_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int End() {
    if (child_ < 0) return 0;
    ::kill(child_, SIGKILL);
    return Wait();
  }

 private:
  pid_t child_ = -1;
};

TEST(LocalSecret, OtherUsersGetNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "becomes another user, which only root can";
  const int port = FreePort();
  const auto served = LocalSecret::Serve(port).value();
  OtherUser other(port, [](int fd, const sockaddr* address, socklen_t size) {
    char byte;
    if (::connect(fd, address, size) != 0) return 1;
    return ::read(fd, &byte, 1) == 0 ? 0 : 2;
  });
  EXPECT_EQ(other.Wait(), 0) << "it got something";
}

TEST(LocalSecret, AnotherUsersSecretIsNotTaken) {
  if (::geteuid() != 0) GTEST_SKIP() << "becomes another user, which only root can";
  const int port = FreePort();
  const OtherUser other(port, [](int fd, const sockaddr* address, socklen_t size) {
    if (::bind(fd, address, size) != 0 || ::listen(fd, 10) != 0) return 1;
    ::pause();
    return 0;
  });
  const auto fetched = LocalSecret::Fetch(port, Soon());
  ASSERT_FALSE(fetched);
  EXPECT_EQ(fetched.error().code(), Code::kPermissionDenied);
}

}  // namespace
}  // namespace millrace::collectives
