#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>

#include "millrace/base/files/files.h"
#include "millrace/csi/service/services.h"

namespace millrace::csi {
namespace {

using testing::HasSubstr;

class RemoteMounterTest : public testing::Test {
 protected:
  std::string socket() const { return dir_.path() / "m.sock"; }
  /// Each call of a mounter that cannot answer.
  void ExpectAll(Code code, const std::string& words) {
    const auto mounter =
        NewRemoteMounter(socket(), {.change = std::chrono::milliseconds(100), .look = std::chrono::milliseconds(50)});
    const auto found = mounter->Inspect("/t");
    const Status inspected = found ? Status() : Fail(found.error());
    for (const Status& done :
         {mounter->Mount({.volume = "v", .target = "/t", .plan = {.url = "s3://b"}}),
          mounter->Bind({.source = "/s", .target = "/t"}), mounter->Unmount("/t", true), inspected}) {
      ASSERT_FALSE(done);
      EXPECT_EQ(done.error().code(), code) << done.error().ToString();
      EXPECT_THAT(done.error().ToString(), HasSubstr(words));
    }
  }

  TempDir dir_ = *TempDir::Create("/tmp");  // the path of a socket must be short
};

TEST_F(RemoteMounterTest, SaysThatNoMounterListens) {
  ExpectAll(Code::kUnavailable, "the mounter of this node does not answer; is its pod running?");
}

TEST_F(RemoteMounterTest, WaitsForAStoppedMounterNoLongerThanItMay) {
  // The kernel takes connections for a process that is stopped.
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::ranges::copy(socket(), address.sun_path);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  ExpectAll(Code::kDeadlineExceeded, "is its process stopped?");
}

}  // namespace
}  // namespace millrace::csi
