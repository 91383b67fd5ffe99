#include "millrace/mount/daemon/service_manager.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "millrace/base/files/files.h"

namespace millrace::mount {
namespace {

TEST(ServiceManager, SendsNotificationsToTheSocketOfSystemd) {
  const TempDir dir = *TempDir::Create();
  const std::string path = (dir.path() / "notify").string();
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path.size(), sizeof address.sun_path);
  std::memcpy(address.sun_path, path.data(), path.size());
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  ::setenv("WATCHDOG_USEC", "3000000", 1);
  const ServiceManager manager;
  ::unsetenv("NOTIFY_SOCKET");
  ::unsetenv("WATCHDOG_USEC");
  EXPECT_EQ(manager.watchdog_period(), std::chrono::milliseconds(1500));
  manager.Ready("mounted");
  manager.Alive();
  manager.Stopping();
  for (const char* expected : {"READY=1\nSTATUS=mounted", "WATCHDOG=1", "STOPPING=1"}) {
    char buffer[256];
    const ssize_t bytes = ::recv(socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    ASSERT_GT(bytes, 0);
    EXPECT_EQ(std::string(buffer, static_cast<std::size_t>(bytes)), expected);
  }
}

TEST(ServiceManager, DoesNothingElsewhere) {
  const ServiceManager manager;
  EXPECT_EQ(manager.watchdog_period(), Duration::zero());
  manager.Ready("mounted");
}

}  // namespace
}  // namespace millrace::mount
