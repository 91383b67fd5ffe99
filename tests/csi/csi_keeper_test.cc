// Mounts of the driver that outlive their daemons, their mounter and their keeper.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"
#include "millrace/mount/daemon/session_holder.h"
#include "millrace/mount/daemon/session_lease.h"
#include "millrace/mount/point/control.h"
#include "millrace/vfs/staging/staging_area.h"
#include "tests/csi/csi_node.h"
#include "tests/support/kill.h"
#include "tests/support/mount_namespace.h"

namespace millrace::csi {
namespace {

using testing::HasSubstr;

/// A node with a keeper: mounts outlive their daemons.
class CsiKeeperTest : public CsiDriverTest {
 protected:
  void SetUp() override {
    keeper_socket_ = sockets() / "keeper.sock";
    StartKeeper();
    CsiDriverTest::SetUp();
    if (IsSkipped()) return;
    Must(Stage(volume_));
    Must(Publish(Published(), "pod"));
    if (Read(MountLog()).contains("cannot send requests again")) GTEST_SKIP() << "the kernel is too old";
  }
  void TearDown() override {
    CsiDriverTest::TearDown();
    keeper_.reset();
  }
  void StartKeeper() {
    auto keeper = mount::SessionHolder::Start(keeper_socket_, Logger(log_, LogLevel::kInfo));
    ASSERT_TRUE(keeper) << keeper.error().ToString();
    keeper_ = *std::move(keeper);
  }
  /// The volume as a pod gets it: its keys are those of the stage.
  Volume Published() const {
    Volume volume = volume_;
    volume.secrets.clear();
    return volume;
  }
  void StopMounter() {
    driver_.reset();
    mounter_server_.reset();
    mounter_.reset();
  }
  /// The log of the only mount.
  std::filesystem::path MountLog() const {
    for (const auto& mount : std::filesystem::directory_iterator(folder_.path() / "state/mounts")) {
      return mount.path() / "log";
    }
    return {};
  }
  /// Kills the daemon of the only mount.
  void Kill() {
    const auto daemons = Daemons();
    ASSERT_EQ(daemons.size(), 1);
    testing_support::KillAndAwaitEnd(daemons[0]);
  }
  void AwaitDaemon() {
    while (Daemons().size() != 1) std::this_thread::yield();
  }

  const Volume volume_{.options = {"allow-delete", "allow-overwrite"},
                       .secrets = {{"AWS_ACCESS_KEY_ID", kKey}, {"AWS_SECRET_ACCESS_KEY", kSecret}}};
  std::unique_ptr<mount::SessionHolder> keeper_;
};

TEST_F(CsiKeeperTest, KilledDaemonsAndMountersDoNotBreakAPod) {
  // Of the pod: writes blocks with their checksums, at random places, and reads them again.
  auto fio = Subprocess::Start(
      {.argv = {"fio", "--name=pod", "--directory=" + target("pod"), "--rw=randrw", "--size=6m", "--bsrange=4k-64k",
                "--verify=crc32c", "--verify_fatal=1", "--loops=12", "--fsync=50", "--verify_state_save=0",
                "--ioengine=psync", "--output=" + (folder_.path() / "fio").string()}});
  if (!fio) GTEST_SKIP() << "there is no fio: " << fio.error().ToString();
  int kills = 0;
  for (; kills < 20 && !fio->Poll(); ++kills) {
    if (kills % 5 == 4) {
      StopMounter();
      Kill();
      UseDriverKeys(false);  // the volume's are at the keeper alone
      StartMounter();
      StartDriver();
    } else {
      Kill();
    }
    AwaitDaemon();
    EXPECT_FALSE(Stats(volume_, "pod").volume_condition().abnormal());
  }
  const ExitState ended = *fio->Wait();
  EXPECT_TRUE(ended.ok()) << ended.ToString() << Read(folder_.path() / "fio") << Read(MountLog()) << Log();
  EXPECT_GE(kills, 3) << "fio ended too early for this test to mean something";
  EXPECT_THAT(Log(), HasSubstr("another one goes on with the mount"));
  Must(Unpublish(volume_, "pod"));
  Must(Unstage(volume_));
  EXPECT_EQ(MountsHere(), 0);
  EXPECT_TRUE(mount::ListHeldSessions(keeper_socket_)->empty());
  EXPECT_TRUE(Daemons().empty());
}

TEST_F(CsiKeeperTest, AnotherKeeperGetsMountsAndPlans) {
  keeper_.reset();
  EXPECT_EQ(Write(target("pod") + "/a", "without a keeper"), 0);
  StartKeeper();
  auto known = [&] {
    const auto kept = mount::ListHeldSessions(keeper_socket_);
    return kept && kept->size() == 1 && kept->front().has_device && kept->front().has_plan;
  };
  while (!known()) std::this_thread::yield();
  StopMounter();
  Kill();
  StartMounter();
  StartDriver();
  EXPECT_EQ(Read(target("pod") + "/a"), "without a keeper");
  EXPECT_EQ(Write(target("pod") + "/a", "with the next one"), 0);
}

TEST_F(CsiKeeperTest, TellsThatBothAreLost) {
  keeper_.reset();
  Kill();
  // A request that is under way when the connection ends is aborted.
  EXPECT_THAT(Write(target("pod") + "/a", "content"), testing::AnyOf(ENOTCONN, ECONNABORTED));
  EXPECT_TRUE(Stats(volume_, "pod").volume_condition().abnormal());
  StartKeeper();
  Must(Stage(volume_));
  Must(Publish(Published(), "new"));
  EXPECT_EQ(Write(target("new") + "/a", "content"), 0);
}

TEST_F(CsiKeeperTest, AVolumeWhoseStoreIsGoneCanBeRemoved) {
  StopMounter();
  server_.reset();
  Kill();
  probe_timeout_ = std::chrono::seconds(1);
  StartMounter();
  StartDriver();
  while (!Log().contains("cannot be started again yet")) std::this_thread::yield();
  Must(Unpublish(volume_, "pod"));
  Must(Unstage(volume_));
  EXPECT_EQ(MountsHere(), 0);
  EXPECT_TRUE(mount::ListHeldSessions(keeper_socket_)->empty());
}

TEST_F(CsiKeeperTest, AnotherNamespaceDoesNotKeepAVolumeFromEnding) {
  auto other = testing_support::MountNamespace::Make();
  ASSERT_TRUE(other) << other.error().ToString();
  EXPECT_EQ(Write(target("pod") + "/a", "content"), 0);
  Must(Unpublish(volume_, "pod"));
  const std::string read_copy = "cat '" + staging(volume_.id) + "/a'";  // kubelet removes the pod's mount point
  EXPECT_EQ(other->Run(read_copy), "content");
  Must(Unstage(volume_));
  EXPECT_EQ(MountsHere(), 0);
  EXPECT_TRUE(mount::ListHeldSessions(keeper_socket_)->empty());
  EXPECT_TRUE(Daemons().empty());
  EXPECT_THAT(other->Run(read_copy), HasSubstr("not connected"));
  Must(Stage(volume_));
  Must(Publish(Published(), "next"));
  EXPECT_EQ(Read(target("next") + "/a"), "content");
}

TEST_F(CsiKeeperTest, AVolumeOfAPodIsNotUnstaged) {
  const grpc::Status refused = Unstage(volume_);
  EXPECT_THAT(refused.error_message(), HasSubstr("is in use at " + target("pod")));
  EXPECT_EQ(Write(target("pod") + "/a", "content"), 0);
  Must(Unpublish(volume_, "pod"));
  Must(Unstage(volume_));
  EXPECT_EQ(MountsHere(), 0);
}

/// A volume with the keys of a Secret, for one pod.
class CsiKeysTest : public CsiKeeperTest {
 protected:
  /// The endpoint takes these keys from now on, and no others.
  void ChangeKeys(const std::string& key, const std::string& secret) {
    const std::string address = fmt::format("127.0.0.1:{}", server_->port());
    server_.reset();
    auto server = s3d::Server::Start({.root = folder_.path() / "buckets",
                                      .listen = address,
                                      .access_key = key,
                                      .secret_key = secret,
                                      .sync = false});
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = *std::move(server);
  }
  static Volume With(const std::string& key, const std::string& secret) {
    return {.id = "of-a-pod",
            .attributes = {{"bucketName", "corpus"}, {"authenticationSource", "secret"}},
            .options = {"allow-delete", "allow-overwrite"},
            .secrets = {{"AWS_ACCESS_KEY_ID", key}, {"AWS_SECRET_ACCESS_KEY", secret}}};
  }
};

TEST_F(CsiKeysTest, AMountGoesOnWithTheKeysOfAChangedSecret) {
  const std::string path = target("own") + "/a";
  Must(Publish(With(kKey, kSecret), "own"));
  const auto daemon = mount::QueryDaemon(target("own"));
  ASSERT_TRUE(daemon);
  // Not this process: the mounter forks here, and a child that closes a file on exec would wait for the next daemon.
  auto pod = testing_support::MountNamespace::Make();
  ASSERT_TRUE(pod) << pod.error().ToString();
  EXPECT_EQ(pod->Run("exec 8> '" + path + "'; printf 'first ' >&8"), "");
  Must(Publish(With(kKey, kSecret), "own"));
  EXPECT_EQ(mount::QueryDaemon(target("own"))->pid, daemon->pid) << "nothing has changed";

  ASSERT_NO_FATAL_FAILURE(ChangeKeys("next-key", "next-secret"));
  EXPECT_EQ(Write(target("own") + "/b", "refused"), EACCES);
  Must(Publish(With("next-key", "next-secret"), "own"));
  EXPECT_EQ(pod->Run("printf second >&8; exec 8>&-"), "");
  EXPECT_EQ(Read(path), "first second");
  EXPECT_NE(mount::QueryDaemon(target("own"))->pid, daemon->pid);
  EXPECT_THAT(Log(), Not(HasSubstr("next-secret")));
}

TEST_F(CsiKeysTest, ASecretThatWasWrongForAWhileIsPutRight) {
  StopMounter();
  probe_timeout_ = std::chrono::seconds(1);
  StartMounter();
  StartDriver();
  Must(Publish(With(kKey, kSecret), "own"));
  Must(Publish(With(kKey, "a-slip"), "own"));
  while (!Log().contains("cannot be started again yet")) std::this_thread::yield();
  while (!Publish(With(kKey, kSecret), "own").ok()) std::this_thread::yield();
  EXPECT_EQ(Write(target("own") + "/a", "content"), 0);
}

TEST_F(CsiKeeperTest, ANewMountTakesOverWhatMountsThatAreOverLeft) {
  const std::filesystem::path staging = folder_.path() / "state/staging" / ShortHash("volume-2");
  std::filesystem::create_directories(staging);
  for (const char* folder : {"", "gone"}) {
    auto area = vfs::StagingArea::Open({.directory = staging / folder, .target = "another store"});
    ASSERT_TRUE(area) << area.error().ToString();
    auto left = *(*area)->Create();
    ASSERT_TRUE(left->Write(0, AsBytes("content")));
    ASSERT_TRUE(left->Save({.key = "a", .size = 7, .complete = true, .held = left->held()}, false));
    left->LeaveOnDisk();
  }
  Volume second = volume_;
  second.id = "volume-2";
  Must(Stage(second));
  EXPECT_FALSE(std::filesystem::exists(staging / "gone"));
  int records = 0;
  for (const auto& folder : std::filesystem::directory_iterator(staging)) {
    if (!folder.is_directory()) continue;
    records += vfs::StagingArea::FindLeftovers(folder.path(), "another store").files;
  }
  EXPECT_EQ(records, 2) << Log();
}

}  // namespace
}  // namespace millrace::csi
