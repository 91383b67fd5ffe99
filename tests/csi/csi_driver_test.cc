// The driver as kubelet sees it: calls over its socket, real mounts by the real program, over the embedded endpoint.
// The mounter is behind a socket of its own, as on a node.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <registration.grpc.pb.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"
#include "millrace/http/testing/scripted_server.h"
#include "millrace/mount/point/control.h"
#include "millrace/object/blocking.h"
#include "millrace/object/connection.h"
#include "millrace/object/url.h"
#include "tests/csi/csi_node.h"

namespace millrace::csi {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST_F(CsiDriverTest, PodsShareTheVolumeOfTheArticle) {
  const Volume volume{.options = {"allow-delete", "region us-west-2"}};
  Must(Stage(volume));
  Must(Stage(volume));
  Must(Publish(volume, "writer"));
  Must(Publish(volume, "writer"));
  Must(Publish(volume, "reader", /*read_only=*/true));
  EXPECT_EQ(Daemons().size(), 1) << "one mount for all pods of the node";
  EXPECT_EQ(Write(target("writer") + "/a", "content"), 0);
  EXPECT_EQ(Read(target("reader") + "/a"), "content");
  EXPECT_EQ(Write(target("reader") + "/b", "content"), EROFS);
  EXPECT_NE(Write(target("writer") + "/a", "overwritten"), 0) << "not without allow-overwrite";
  EXPECT_EQ(::unlink((target("writer") + "/a").c_str()), 0);
  EXPECT_FALSE(Stats(volume, "writer").volume_condition().abnormal());
  for (const char* pod : {"writer", "reader"}) {
    Must(Unpublish(volume, pod));
    Must(Unpublish(volume, pod));
    EXPECT_FALSE(std::filesystem::exists(target(pod)));
  }
  Must(Unstage(volume));
  Must(Unstage(volume));
  EXPECT_EQ(MountsHere(), 0);
  EXPECT_TRUE(Daemons().empty());
}

TEST_F(CsiDriverTest, ProtectsAStaticVolumeUnlessItsOptionsSayOtherwise) {
  const Volume volume;
  Must(Stage(volume));
  Must(Publish(volume, "pod"));
  EXPECT_EQ(Write(target("pod") + "/a", "content"), 0);
  EXPECT_EQ(::unlink((target("pod") + "/a").c_str()), -1);
  auto changed = volume;
  changed.options = {"allow-delete"};
  EXPECT_EQ(Stage(changed).error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

TEST_F(CsiDriverTest, DriverAndMounterMayBeReplacedWhileAPodWrites) {
  const Volume volume;
  Must(Stage(volume));
  Must(Publish(volume, "pod"));
  UniqueFd file(::open((target("pod") + "/a").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_TRUE(file);
  EXPECT_EQ(::write(file.get(), "one", 3), 3);
  driver_.reset();
  mounter_server_.reset();
  mounter_.reset();
  EXPECT_EQ(::write(file.get(), "two", 3), 3);
  StartMounter();
  StartDriver();
  EXPECT_EQ(::write(file.get(), "three", 5), 5);
  EXPECT_EQ(::close(file.Release()), 0);
  EXPECT_EQ(Read(target("pod") + "/a"), "onetwothree");
  Must(Stage(volume));
  EXPECT_EQ(Daemons().size(), 1) << "the new driver has found the old one's mount";
  Must(Unpublish(volume, "pod"));
  Must(Unstage(volume));
  EXPECT_TRUE(Daemons().empty());
}

TEST_F(CsiDriverTest, AMounterThatEndsPublishesWhatIsClosed) {
  constexpr int kFiles = 40;
  const Volume volume{.options = {"close=async"}};
  Must(Stage(volume));
  Must(Publish(volume, "pod"));
  ASSERT_TRUE(server_->SetFaults("latency=100ms,op=PutObject"));
  UniqueFd open(::open((target("pod") + "/open").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  EXPECT_EQ(::write(open.get(), "x", 1), 1);
  for (int i = 0; i < kFiles; ++i)
    EXPECT_EQ(Write(target("pod") + "/" + std::to_string(i), std::string(50'000, 'a')), 0);
  EXPECT_EQ(mounter_->AwaitPublished(std::chrono::minutes(1)), 0);
  const auto connection = *connections_.Get({});
  const auto store = *connection->OpenStore(*object::ParseUrl("s3://corpus/"));
  for (int i = 0; i < kFiles; ++i) {
    const auto info = object::Head(*store, std::to_string(i));
    EXPECT_TRUE(info && *info) << i;
  }
}

TEST_F(CsiDriverTest, VolumesHaveTheMemoryOfTheNodeTogether) {
  driver_.reset();
  mounter_server_.reset();
  mounter_.reset();
  node_memory_ = 1 * kGiB;  // of two mounts that say nothing
  StartMounter();
  StartDriver();
  const Volume first{.id = "first"}, second{.id = "second"}, third{.id = "third"};
  const Volume small{.id = "small", .options = {"memory-budget=256MiB"}};
  Must(Stage(first));
  Must(Stage(small));
  const grpc::Status refused = Stage(second);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("805.3 MB are given to 2 mounts, this one needs 536.9 MB"));
  Must(Stage(first));  // again: it has its memory
  driver_.reset();
  mounter_server_.reset();
  mounter_.reset();
  StartMounter();
  StartDriver();
  EXPECT_FALSE(Stage(second).ok()) << "the next mounter has forgotten the mounts of the last one";
  Must(Unstage(small));
  Must(Stage(second));
  EXPECT_FALSE(Stage(third).ok());
}

TEST_F(CsiDriverTest, TellsOfADeadDaemonAndMountsAgain) {
  const Volume volume;
  Must(Stage(volume));
  Must(Publish(volume, "old"));
  EXPECT_EQ(Write(target("old") + "/a", "content"), 0);
  auto daemon = mount::QueryDaemon(staging(volume.id));
  ASSERT_TRUE(daemon);
  ASSERT_EQ(::kill(daemon->pid, SIGKILL), 0);
  while (mount::QueryDaemon(staging(volume.id))) std::this_thread::yield();
  EXPECT_TRUE(Stats(volume, "old").volume_condition().abnormal());
  Must(Publish(volume, "new"));
  EXPECT_EQ(Read(target("new") + "/a"), "content");
  Must(Unpublish(volume, "old"));
  Must(Unpublish(volume, "new"));
  Must(Unstage(volume));
  EXPECT_EQ(MountsHere(), 0);
}

TEST_F(CsiDriverTest, KeepsSecretsToTheirVolume) {
  UseDriverKeys(false);
  const std::map<std::string, std::string> keys = {{"AWS_ACCESS_KEY_ID", kKey}, {"AWS_SECRET_ACCESS_KEY", kSecret}};
  EXPECT_FALSE(Stage({}).ok()) << "the driver has no keys";
  const Volume volume{.id = "volume-2", .secrets = keys};
  Must(Stage(volume));
  auto without = volume;
  without.secrets.clear();
  Must(Publish(without, "pod"));
  EXPECT_EQ(Write(target("pod") + "/a", "content"), 0);
  ASSERT_EQ(Daemons().size(), 1);
  const std::string process = fmt::format("/proc/{}", Daemons()[0]);
  EXPECT_THAT(Read(process + "/cmdline"), Not(HasSubstr(kSecret)));
  auto searched = Subprocess::Run({.argv = {"grep", "-r", "-l", kSecret, (folder_.path() / "state").string()}});
  ASSERT_TRUE(searched);
  EXPECT_EQ(searched->stdout_text, "") << "no file of the driver has the secret";
  EXPECT_THAT(Log(), Not(HasSubstr(kSecret)));
}

TEST_F(CsiDriverTest, GivesNobodyTheDriversKeysInPlaceOfAVolumesOwn) {
  const Volume volume{.secrets = {{"AWS_ACCESS_KEY_ID", kKey}, {"AWS_SECRET_ACCESS_KEY", kSecret}}};
  Must(Stage(volume));
  ASSERT_EQ(Daemons().size(), 1);
  const pid_t daemon = Daemons()[0];
  ASSERT_EQ(::kill(daemon, SIGKILL), 0);
  while (mount::QueryDaemon(staging(volume.id))) std::this_thread::yield();
  auto without = volume;
  without.secrets.clear();
  const grpc::Status published = Publish(without, "pod");
  EXPECT_EQ(published.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << published.error_message();
  // Nor after a restart of the mounter, which cleans up.
  driver_.reset();
  mounter_server_.reset();
  mounter_.reset();
  StartMounter();
  StartDriver();
  EXPECT_EQ(MountsHere(), 0) << "the dead mount is gone";
  EXPECT_EQ(Publish(without, "pod").error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  Must(Stage(volume));
  Must(Publish(without, "pod"));
}

TEST_F(CsiDriverTest, APodsServiceAccountAssumesItsRole) {
  UseDriverKeys(false);
  Mutex mutex;
  std::string asked;
  http::testing::ScriptedServer sts([&](const http::testing::ScriptedServer::Seen& seen) {
    MutexLock lock(mutex);
    asked = seen.body;
    const std::string answer = fmt::format(
        "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{}</AccessKeyId>"
        "<SecretAccessKey>{}</SecretAccessKey><SessionToken>t</SessionToken><Expiration>2100-01-01T00:00:00Z</"
        "Expiration>"
        "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
        kKey, kSecret);
    return http::testing::ScriptedServer::Reply{http::testing::Answer(200, answer)};
  });
  ::setenv("AWS_ENDPOINT_URL_STS", sts.url().c_str(), 1);
  Volume volume{.attributes = {{"bucketName", "corpus"},
                               {"authenticationSource", "pod"},
                               {"roleArn", "arn:aws:iam::1:role/reader"},
                               {"csi.storage.k8s.io/serviceAccount.tokens",
                                R"({"sts.amazonaws.com": {"token": "first-token", "expirationTimestamp": "x"}})"}}};
  Must(Stage(volume));
  EXPECT_TRUE(Daemons().empty()) << "no pod, no identity";
  Must(Publish(volume, "pod"));
  EXPECT_EQ(Write(target("pod") + "/a", "content"), 0);
  {
    MutexLock lock(mutex);
    EXPECT_THAT(asked, AllOf(HasSubstr("first-token"), HasSubstr("role%2Freader")));
  }
  volume.attributes["csi.storage.k8s.io/serviceAccount.tokens"] = R"({"sts.amazonaws.com": {"token": "second-token"}})";
  Must(Publish(volume, "pod"));
  EXPECT_EQ(Daemons().size(), 1);
  auto found = Subprocess::Run({.argv = {"grep", "-r", "-h", "-e", "-token$", (folder_.path() / "state").string()}});
  ASSERT_TRUE(found);
  EXPECT_EQ(Trim(found->stdout_text), "second-token") << "the mount reads it when it needs new keys";
  EXPECT_THAT(Log(), Not(HasSubstr("-token\"")));
  Must(Unpublish(volume, "pod"));
  ::unsetenv("AWS_ENDPOINT_URL_STS");
}

TEST_F(CsiDriverTest, AnInlineVolumeNeedsKeysOfItsOwn) {
  Volume volume{.id = "csi-inline", .attributes = {{"bucketName", "corpus"}, {"csi.storage.k8s.io/ephemeral", "true"}}};
  EXPECT_EQ(Publish(volume, "pod", false, /*staged=*/false).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  volume.attributes.erase("csi.storage.k8s.io/ephemeral");
  EXPECT_EQ(Publish(volume, "pod", false, /*staged=*/false).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  volume.secrets = {{"AWS_ACCESS_KEY_ID", kKey}, {"AWS_SECRET_ACCESS_KEY", kSecret}};
  Must(Publish(volume, "pod", false, /*staged=*/false));
  EXPECT_EQ(Write(target("pod") + "/a", "content"), 0);
  Must(Unpublish(volume, "pod"));
  EXPECT_TRUE(Daemons().empty());
}

TEST_F(CsiDriverTest, GivesFilesToThePodsGroup) {
  const Volume volume{.group = "2000"};
  Must(Stage(volume));
  Must(Publish(volume, "pod"));
  EXPECT_EQ(Write(target("pod") + "/a", "content"), 0);
  struct stat info{};
  ASSERT_EQ(::stat(target("pod").c_str(), &info), 0);
  EXPECT_EQ(info.st_gid, 2000);
  auto other = volume;
  other.group = "3000";
  Must(Publish(other, "other"));
  ASSERT_EQ(::stat(target("other").c_str(), &info), 0);
  EXPECT_EQ(info.st_gid, 3000);
}

TEST_F(CsiDriverTest, ReadWriteOncePodIsForOnePod) {
  const Volume volume{.mode = pb::VolumeCapability::AccessMode::SINGLE_NODE_SINGLE_WRITER};
  Must(Stage(volume));
  Must(Publish(volume, "one"));
  EXPECT_EQ(Publish(volume, "two").error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  Must(Unpublish(volume, "one"));
  Must(Publish(volume, "two"));
}

TEST_F(CsiDriverTest, OfTwoPodsAtOnceOneGetsAReadWriteOncePodVolume) {
  constexpr int kRounds = 30;
  const Volume staged{.mode = pb::VolumeCapability::AccessMode::SINGLE_NODE_SINGLE_WRITER};
  // A volume whose pods have mounts of their own.
  const Volume own{.id = "volume-2",
                   .attributes = {{"bucketName", "corpus"}, {"authenticationSource", "secret"}},
                   .secrets = {{"AWS_ACCESS_KEY_ID", kKey}, {"AWS_SECRET_ACCESS_KEY", kSecret}},
                   .mode = staged.mode};
  for (const auto& [volume, rounds] : {std::pair(staged, kRounds), {own, 3}}) {
    Must(Stage(volume));
    for (int round = 0; round < rounds; ++round) {
      std::array<grpc::Status, 2> answers;
      {
        std::jthread other([&] { answers[1] = Publish(volume, "two"); });
        answers[0] = Publish(volume, "one");
      }
      EXPECT_EQ(answers[0].ok() + answers[1].ok(), 1) << answers[0].error_message() << answers[1].error_message();
      const int winner = answers[0].ok() ? 0 : 1;
      EXPECT_THAT(answers.at(1 - winner).error_code(),
                  testing::AnyOf(grpc::StatusCode::ABORTED, grpc::StatusCode::FAILED_PRECONDITION));
      EXPECT_FALSE(Publish(volume, winner == 0 ? "two" : "one").ok());
      Must(Unpublish(volume, "one"));
      Must(Unpublish(volume, "two"));
    }
    Must(Unstage(volume));
  }
  EXPECT_EQ(MountsHere(), 0);
}

TEST_F(CsiDriverTest, CallsForAStoppedDaemonEnd) {
  mounter_server_.reset();
  mounter_.reset();
  probe_timeout_ = std::chrono::milliseconds(200);
  StartMounter();
  const Volume volume;
  Must(Stage(volume));
  Must(Publish(volume, "one"));
  ASSERT_EQ(Daemons().size(), 1);
  ::kill(Daemons()[0], SIGSTOP);
  EXPECT_EQ(Stage(volume).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Publish(volume, "two").error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Stats(volume, "one").volume_condition().abnormal());
  EXPECT_FALSE(Unpublish(volume, "one").ok());  // those who ask the daemon wait inside of its mount
  const grpc::Status unstaged = Unstage(volume);
  EXPECT_EQ(unstaged.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(unstaged.error_message(), HasSubstr("is its process stopped?"));
  const std::vector<pid_t> stopped = Daemons();
  ASSERT_EQ(stopped.size(), 1) << "nobody ends a daemon that may have files to publish";
  ::kill(stopped[0], SIGCONT);
  while (!Publish(volume, "two").ok()) std::this_thread::yield();
  EXPECT_EQ(Write(target("two") + "/a", "content"), 0);
  for (const char* pod : {"one", "two"}) {
    while (!Unpublish(volume, pod).ok()) std::this_thread::yield();
  }
  Must(Unstage(volume));
  EXPECT_EQ(MountsHere(), 0);
}

TEST_F(CsiDriverTest, ALogOfAVolumeIsBounded) {
  Must(Stage({}));
  const auto daemons = Daemons();
  ASSERT_EQ(daemons.size(), 1);
  const std::string arguments = *ReadFile(fmt::format("/proc/{}/cmdline", daemons[0]), 64 * kKiB);
  EXPECT_TRUE(arguments.contains("--log-limit=1048576")) << arguments;
}

TEST_F(CsiDriverTest, RefusesTargetsOutsideOfKubeletsFolder) {
  const Volume volume;
  Must(Stage(volume));
  auto request = RequestFor<pb::NodePublishVolumeRequest>(volume);
  request.set_staging_target_path(staging(volume.id));
  for (const std::string& path :
       {std::string("/etc"), kubelet().string() + "/pods/../../x", kubelet().string() + "/pki"}) {
    request.set_target_path(path);
    EXPECT_EQ(Ask<pb::NodePublishVolumeResponse>(*node_, &pb::Node::Stub::NodePublishVolume, request).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST_F(CsiDriverTest, SaysWhyAVolumeCannotBeMounted) {
  const grpc::Status missing = Stage({.attributes = {{"bucketName", "no-such-bucket"}}});
  EXPECT_FALSE(missing.ok());
  EXPECT_THAT(missing.error_message(), HasSubstr("no-such-bucket"));
  const grpc::Status option = Stage({.options = {"alow-delete"}});
  EXPECT_EQ(option.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(option.error_message(), HasSubstr("allow-delete"));
}

TEST_F(CsiDriverTest, ProvisionedVolumesKeepFilesForTheNextPod) {
  pb::CreateVolumeRequest wanted;
  wanted.set_name("pvc-1");
  auto& capability = *wanted.add_volume_capabilities();
  capability.mutable_mount();
  capability.mutable_access_mode()->set_mode(pb::VolumeCapability::AccessMode::MULTI_NODE_MULTI_WRITER);
  pb::CreateVolumeResponse made;
  Must(Ask(*controller_, &pb::Controller::Stub::CreateVolume, wanted, &made));
  Volume volume{.id = made.volume().volume_id(),
                .attributes = {made.volume().volume_context().begin(), made.volume().volume_context().end()}};
  auto staging_request = RequestFor<pb::NodeStageVolumeRequest>(volume);
  volume.id = "pvc-1";  // in paths of the test
  std::filesystem::create_directories(staging("pvc-1"));
  staging_request.set_staging_target_path(staging("pvc-1"));
  Must(Ask<pb::NodeStageVolumeResponse>(*node_, &pb::Node::Stub::NodeStageVolume, staging_request));
  Must(Publish(volume, "first"));
  EXPECT_EQ(Write(target("first") + "/a", "content"), 0);
  EXPECT_EQ(Write(target("first") + "/a", "overwritten"), 0) << "its own files are not protected";
  Must(Unpublish(volume, "first"));
  Must(Publish(volume, "second"));
  EXPECT_EQ(Read(target("second") + "/a"), "overwritten");
  EXPECT_FALSE(std::filesystem::exists(target("second") + "/volume.json")) << "pods do not see the mark";
  Must(Unpublish(volume, "second"));
  Must(Unstage(volume));
  pb::DeleteVolumeRequest unwanted;
  unwanted.set_volume_id(made.volume().volume_id());
  Must(Ask<pb::DeleteVolumeResponse>(*controller_, &pb::Controller::Stub::DeleteVolume, unwanted));
}

TEST_F(CsiDriverTest, EnforcesTheCapacityOfAVolume) {
  pb::CreateVolumeRequest wanted;
  wanted.set_name("pvc-1");
  auto& capability = *wanted.add_volume_capabilities();
  capability.mutable_mount();
  capability.mutable_access_mode()->set_mode(pb::VolumeCapability::AccessMode::MULTI_NODE_MULTI_WRITER);
  wanted.mutable_capacity_range()->set_required_bytes(static_cast<std::int64_t>(kMiB));
  (*wanted.mutable_parameters())["enforceCapacity"] = "true";
  pb::CreateVolumeResponse made;
  Must(Ask(*controller_, &pb::Controller::Stub::CreateVolume, wanted, &made));
  Volume volume{.id = made.volume().volume_id(),
                .attributes = {made.volume().volume_context().begin(), made.volume().volume_context().end()}};
  auto staging_request = RequestFor<pb::NodeStageVolumeRequest>(volume);
  volume.id = "pvc-1";  // in paths of the test
  std::filesystem::create_directories(staging("pvc-1"));
  staging_request.set_staging_target_path(staging("pvc-1"));
  Must(Ask<pb::NodeStageVolumeResponse>(*node_, &pb::Node::Stub::NodeStageVolume, staging_request));
  Must(Publish(volume, "pod"));
  const std::string half(kMiB / 2, 'x');
  EXPECT_EQ(Write(target("pod") + "/a", half), 0);
  EXPECT_EQ(Write(target("pod") + "/small", "x"), 0);
  EXPECT_EQ(Write(target("pod") + "/b", half), ENOSPC);
  ASSERT_EQ(::unlink((target("pod") + "/b").c_str()), 0);

  pb::NodeGetVolumeStatsRequest ask;
  ask.set_volume_id(volume.id);
  ask.set_volume_path(target("pod"));
  pb::NodeGetVolumeStatsResponse figures;
  Must(Ask(*node_, &pb::Node::Stub::NodeGetVolumeStats, ask, &figures));
  EXPECT_EQ(figures.usage(0).total(), static_cast<std::int64_t>(kMiB));
  EXPECT_NEAR(static_cast<double>(figures.usage(0).used()), static_cast<double>(kMiB / 2), 4097.0);

  pb::ControllerExpandVolumeRequest grow;
  grow.set_volume_id(made.volume().volume_id());
  grow.mutable_capacity_range()->set_required_bytes(static_cast<std::int64_t>(2 * kMiB));
  Must(Ask<pb::ControllerExpandVolumeResponse>(*controller_, &pb::Controller::Stub::ControllerExpandVolume, grow));
  ASSERT_EQ(::unlink((target("pod") + "/small").c_str()), 0);  // the mount looks again when something went
  EXPECT_EQ(Write(target("pod") + "/b", half + half), 0);
  Must(Unpublish(volume, "pod"));
  Must(Unstage(volume));
}

TEST_F(CsiDriverTest, ProvisionsWithTheKeysOfTheStorageClass) {
  UseDriverKeys(false);
  ::setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
  pb::CreateVolumeRequest wanted;
  wanted.set_name("pvc-1");
  auto& capability = *wanted.add_volume_capabilities();
  capability.mutable_mount();
  capability.mutable_access_mode()->set_mode(pb::VolumeCapability::AccessMode::MULTI_NODE_MULTI_WRITER);
  pb::CreateVolumeResponse made;
  EXPECT_FALSE(Ask(*controller_, &pb::Controller::Stub::CreateVolume, wanted, &made).ok()) << "the driver has no keys";
  (*wanted.mutable_secrets())["AWS_ACCESS_KEY_ID"] = kKey;
  (*wanted.mutable_secrets())["AWS_SECRET_ACCESS_KEY"] = kSecret;
  Must(Ask(*controller_, &pb::Controller::Stub::CreateVolume, wanted, &made));
  (*wanted.mutable_secrets())["AWS_SECRET_ACCESS_KEY"] = "another";
  EXPECT_FALSE(Ask(*controller_, &pb::Controller::Stub::CreateVolume, wanted, &made).ok()) << "each secret by itself";
  ::unsetenv("AWS_EC2_METADATA_DISABLED");
}

TEST_F(CsiDriverTest, RegistersUnderAllItsNames) {
  for (const char* name : {kDriverName, "s3.csi.aws.com"}) {
    const auto socket = sockets() / "registry" / fmt::format("{}-reg.sock", name);
    auto stub = ::pluginregistration::Registration::NewStub(
        grpc::CreateChannel("unix:" + socket.string(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    ::pluginregistration::PluginInfo info;
    Must(stub->GetInfo(&context, {}, &info));
    EXPECT_EQ(info.type(), "CSIPlugin");
    EXPECT_EQ(info.name(), name);
    EXPECT_EQ(info.endpoint(), "/host/csi.sock");
  }
}

TEST_F(CsiDriverTest, TheEndOfAnOldDriverLeavesTheNewOneRegistered) {
  // What the old one borrows stays until it has ended.
  const auto mounter = std::move(remote_);
  const auto provisioner = std::move(provisioner_);
  auto old = std::move(driver_);
  StartDriver();
  old.reset();
  const auto socket = sockets() / "registry" / fmt::format("{}-reg.sock", kDriverName);
  EXPECT_TRUE(std::filesystem::exists(socket));
  Must(Stage({}));
  driver_.reset();
  EXPECT_FALSE(std::filesystem::exists(socket));
}

}  // namespace
}  // namespace millrace::csi
