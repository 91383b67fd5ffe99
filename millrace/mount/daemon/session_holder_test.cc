#include "millrace/mount/daemon/session_holder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "millrace/mount/daemon/session_lease.h"

namespace millrace::mount {
namespace {

class KeeperTest : public testing::Test {
 protected:
  void StartKeeper() {
    auto keeper = SessionHolder::Start(socket(), {});
    ASSERT_TRUE(keeper) << keeper.error().ToString();
    keeper_ = *std::move(keeper);
  }
  std::filesystem::path socket() const { return dir_.path() / "keeper.sock"; }
  std::unique_ptr<SessionLease> Acquire(const std::string& name) {
    auto held = SessionLease::Acquire(socket(), name, {});
    EXPECT_TRUE(held) << held.error().ToString();
    return *std::move(held);
  }
  /// A file in place of a FUSE device.
  UniqueFd Device() const { return *OpenFile(dir_.path() / "device", O_RDWR | O_CREAT); }
  static ino_t NumberOf(const UniqueFd& fd) {
    struct stat info{};
    ::fstat(fd.get(), &info);
    return info.st_ino;
  }
  std::vector<HeldSessionInfo> List() const { return *ListHeldSessions(socket()); }

  TempDir dir_ = *TempDir::Create("/tmp");  // the path of a socket must be short
  std::unique_ptr<SessionHolder> keeper_;
};

TEST_F(KeeperTest, GivesADescriptorToTheNextProcess) {
  StartKeeper();
  const UniqueFd device = Device();
  auto first = Acquire("a");
  EXPECT_FALSE(first->TakeDevice());
  ASSERT_TRUE(first->StoreDevice(device.get()));
  EXPECT_EQ(SessionLease::Acquire(socket(), "a", {}).error().code(), Code::kBusy);
  first.reset();  // as if its process died
  while (List().at(0).held) ::usleep(1000);
  EXPECT_TRUE(List().at(0).has_device);
  auto second = Acquire("a");
  EXPECT_EQ(NumberOf(second->TakeDevice()), NumberOf(device));
  EXPECT_TRUE(List().at(0).held);
  second->ForgetSession();
  EXPECT_TRUE(List().empty());
}

TEST_F(KeeperTest, ForgetsAProcessThatEndedBeforeItsMountWasLive) {
  StartKeeper();
  ASSERT_TRUE(StoreDaemonPlan(socket(), "a", "how to start"));
  Acquire("a").reset();
  while (!List().empty()) ::usleep(1000);
  EXPECT_EQ(ReadDaemonPlan(socket(), "a").error().code(), Code::kNotFound);
}

TEST_F(KeeperTest, KeepsPlans) {
  StartKeeper();
  const std::string plan(100'000, 'p');
  ASSERT_TRUE(StoreDaemonPlan(socket(), "a", plan));
  EXPECT_EQ(*ReadDaemonPlan(socket(), "a"), plan);
  auto held = Acquire("a");
  EXPECT_EQ(ForgetHeldSession(socket(), "a").error().code(), Code::kBusy);
  ASSERT_TRUE(StoreDaemonPlan(socket(), "b", "other"));
  ASSERT_TRUE(ForgetHeldSession(socket(), "b"));
  EXPECT_EQ(ReadDaemonPlan(socket(), "b").error().code(), Code::kNotFound);
}

TEST_F(KeeperTest, GetsTheDescriptorsAgainAfterItsDeath) {
  StartKeeper();
  const UniqueFd device = Device();
  auto held = Acquire("a");
  ASSERT_TRUE(held->StoreDevice(device.get()));
  keeper_.reset();
  EXPECT_EQ(ListHeldSessions(socket()).error().code(), Code::kUnavailable);
  StartKeeper();
  while (List().empty() || !List().at(0).has_device) ::usleep(1000);
  held.reset();
  while (List().at(0).held) ::usleep(1000);
  EXPECT_EQ(NumberOf(Acquire("a")->TakeDevice()), NumberOf(device));
}

TEST_F(KeeperTest, ServesOneSocketOnce) {
  StartKeeper();
  EXPECT_EQ(SessionHolder::Start(socket(), {}).error().code(), Code::kAlreadyExists);
  EXPECT_EQ(SessionHolder::Start(dir_.path() / std::string(200, 'x'), {}).error().code(), Code::kInvalidArgument);
  struct stat info{};
  ASSERT_EQ(::stat(socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
}

TEST_F(KeeperTest, AnswersNonsense) {
  StartKeeper();
  const UniqueFd connection = *ConnectSessionHolder(socket());
  for (const std::string& text : {std::string("keep"), std::string("drop"), std::string("hold"),
                                  std::string("hold a/b"), std::string("hold ") + std::string(200, 'a'),
                                  std::string("plan a"), std::string("what"), std::string(5000, 'x')}) {
    ASSERT_TRUE(SendHolderMessage(connection.get(), text, -1)) << text;
    EXPECT_TRUE(ReceiveHolderMessage(connection.get())->text.starts_with("error ")) << text;
  }
  EXPECT_TRUE(List().empty());
}

}  // namespace
}  // namespace millrace::mount
