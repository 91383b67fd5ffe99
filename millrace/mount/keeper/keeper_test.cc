#include "millrace/mount/keeper/keeper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "millrace/mount/keeper/kept_mount.h"

namespace millrace::mount {
namespace {

class KeeperTest : public testing::Test {
 protected:
  void StartKeeper() {
    auto keeper = Keeper::Start(socket(), {});
    ASSERT_TRUE(keeper) << keeper.error().ToString();
    keeper_ = *std::move(keeper);
  }
  std::filesystem::path socket() const { return dir_.path() / "keeper.sock"; }
  std::unique_ptr<HeldMount> Hold(const std::string& name) {
    auto held = HeldMount::Hold(socket(), name, {});
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
  std::vector<KeptName> List() const { return *ListKept(socket()); }

  TempDir dir_ = *TempDir::Create("/tmp");  // the path of a socket must be short
  std::unique_ptr<Keeper> keeper_;
};

TEST_F(KeeperTest, GivesADescriptorToTheNextProcess) {
  StartKeeper();
  const UniqueFd device = Device();
  auto first = Hold("a");
  EXPECT_FALSE(first->TakeDevice());
  ASSERT_TRUE(first->Keep(device.get()));
  EXPECT_EQ(HeldMount::Hold(socket(), "a", {}).error().code(), Code::kBusy);
  first.reset();  // as if its process died
  while (List().at(0).held) ::usleep(1000);
  EXPECT_TRUE(List().at(0).has_device);
  auto second = Hold("a");
  EXPECT_EQ(NumberOf(second->TakeDevice()), NumberOf(device));
  EXPECT_TRUE(List().at(0).held);
  second->Drop();
  EXPECT_TRUE(List().empty());
}

TEST_F(KeeperTest, ForgetsAProcessThatEndedBeforeItsMountWasLive) {
  StartKeeper();
  ASSERT_TRUE(PutPlan(socket(), "a", "how to start"));
  Hold("a").reset();
  while (!List().empty()) ::usleep(1000);
  EXPECT_EQ(ReadPlan(socket(), "a").error().code(), Code::kNotFound);
}

TEST_F(KeeperTest, KeepsPlans) {
  StartKeeper();
  const std::string plan(100'000, 'p');
  ASSERT_TRUE(PutPlan(socket(), "a", plan));
  EXPECT_EQ(*ReadPlan(socket(), "a"), plan);
  auto held = Hold("a");
  EXPECT_EQ(ForgetKept(socket(), "a").error().code(), Code::kBusy);
  ASSERT_TRUE(PutPlan(socket(), "b", "other"));
  ASSERT_TRUE(ForgetKept(socket(), "b"));
  EXPECT_EQ(ReadPlan(socket(), "b").error().code(), Code::kNotFound);
}

TEST_F(KeeperTest, GetsTheDescriptorsAgainAfterItsDeath) {
  StartKeeper();
  const UniqueFd device = Device();
  auto held = Hold("a");
  ASSERT_TRUE(held->Keep(device.get()));
  keeper_.reset();
  EXPECT_EQ(ListKept(socket()).error().code(), Code::kUnavailable);
  StartKeeper();
  while (List().empty() || !List().at(0).has_device) ::usleep(1000);
  held.reset();
  while (List().at(0).held) ::usleep(1000);
  EXPECT_EQ(NumberOf(Hold("a")->TakeDevice()), NumberOf(device));
}

TEST_F(KeeperTest, ServesOneSocketOnce) {
  StartKeeper();
  EXPECT_EQ(Keeper::Start(socket(), {}).error().code(), Code::kAlreadyExists);
  EXPECT_EQ(Keeper::Start(dir_.path() / std::string(200, 'x'), {}).error().code(), Code::kInvalidArgument);
  struct stat info{};
  ASSERT_EQ(::stat(socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
}

TEST_F(KeeperTest, AnswersNonsense) {
  StartKeeper();
  const UniqueFd connection = *ConnectKeeper(socket());
  for (const std::string& text : {std::string("keep"), std::string("drop"), std::string("hold"),
                                  std::string("hold a/b"), std::string("hold ") + std::string(200, 'a'),
                                  std::string("plan a"), std::string("what"), std::string(5000, 'x')}) {
    ASSERT_TRUE(SendKeeperMessage(connection.get(), text, -1)) << text;
    EXPECT_TRUE(ReceiveKeeperMessage(connection.get())->text.starts_with("error ")) << text;
  }
  EXPECT_TRUE(List().empty());
}

}  // namespace
}  // namespace millrace::mount
