// A node with the CSI driver for tests: the driver as kubelet sees it, with real mounts by the real program.
#pragma once

#include <csi.grpc.pb.h>
#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/files/mount_table.h"
#include "millrace/base/log.h"
#include "millrace/base/threads/sync.h"
#include "millrace/csi/driver.h"
#include "millrace/csi/mounter/local_mounter.h"
#include "millrace/csi/provision/connections.h"
#include "millrace/s3d/server.h"

namespace millrace::csi {

namespace pb = ::csi::v1;

inline constexpr char kKey[] = "tested-key", kSecret[] = "tested-secret-of-the-volume";

/// A node with the driver, its mounter, and an endpoint with the bucket "corpus". Needs root and /dev/fuse; skips its
/// test without them. Stops everything and removes all mounts at the end of a test.
class CsiDriverTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "mounting for pods needs root";
    if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "there is no usable /dev/fuse";
    std::filesystem::create_directories(kubelet() / "pods");
    std::filesystem::create_directories(sockets() / "registry");
    auto server = s3d::Server::Start(
        {.root = folder_.path() / "buckets", .access_key = kKey, .secret_key = kSecret, .sync = false});
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = *std::move(server);
    ASSERT_TRUE(server_->CreateBucket("corpus"));
    ::setenv("AWS_ENDPOINT_URL", server_->endpoint().c_str(), 1);
    ::setenv("AWS_REGION", "us-east-1", 1);
    ::setenv("AWS_MAX_ATTEMPTS", "2", 1);
    UseDriverKeys(true);
    StartMounter();
    StartDriver();
  }

  void TearDown() override {
    driver_.reset();
    mounter_server_.reset();
    for (const MountEntry& entry : ReadMountTable().value_or(std::vector<MountEntry>{})) {
      if (!entry.point.starts_with(folder_.path().string())) continue;
      ::umount2(entry.point.c_str(), MNT_DETACH);
    }
    for (const pid_t daemon : Daemons()) ::kill(daemon, SIGKILL);
    mounter_.reset();
    for (const pid_t daemon : Daemons()) ::kill(daemon, SIGKILL);  // those that the mounter started meanwhile
  }

  static void UseDriverKeys(bool use) {
    if (use) {
      ::setenv("AWS_ACCESS_KEY_ID", kKey, 1);
      ::setenv("AWS_SECRET_ACCESS_KEY", kSecret, 1);
    } else {
      ::unsetenv("AWS_ACCESS_KEY_ID");
      ::unsetenv("AWS_SECRET_ACCESS_KEY");
    }
  }

  void StartMounter() {
    const char* bin = std::getenv("MILLRACE_BIN");
    auto mounter =
        LocalMounter::Open({.program = std::filesystem::absolute(bin ? bin : "build/release/bin") / "millrace",
                            .kubelet_folder = kubelet(),
                            .state_folder = folder_.path() / "state",
                            .node_memory = node_memory_,
                            .probe_timeout = probe_timeout_,
                            .keeper = keeper_socket_,
                            .log = Logger(log_, LogLevel::kInfo)});
    ASSERT_TRUE(mounter) << mounter.error().ToString();
    mounter_ = *std::move(mounter);
    auto server =
        MounterServer::Start(*mounter_, sockets() / "mounter.sock", {}, nullptr, Logger(log_, LogLevel::kInfo));
    ASSERT_TRUE(server) << server.error().ToString();
    mounter_server_ = *std::move(server);
  }

  void StartDriver() {
    remote_ = ConnectMounter(sockets() / "mounter.sock", {.look = std::chrono::seconds(150)});
    auto provisioner =
        Provisioner::Create({.driver = kDriverName,
                             .default_place = "s3://corpus/volumes-of-test",
                             .connect = [this](const Secrets& secrets) { return connections_.Get(secrets); }});
    ASSERT_TRUE(provisioner);
    provisioner_ = *std::move(provisioner);
    auto driver = Driver::Start({.aliases = {"s3.csi.aws.com"},
                                 .socket = sockets() / "csi.sock",
                                 .node_id = "node-1",
                                 .mounter = remote_.get(),
                                 .provisioner = provisioner_.get(),
                                 .registration_folder = sockets() / "registry",
                                 .socket_on_host = "/host/csi.sock",
                                 .log = Logger(log_, LogLevel::kInfo)});
    ASSERT_TRUE(driver) << driver.error().ToString();
    driver_ = *std::move(driver);
    auto channel = grpc::CreateChannel("unix:" + (sockets() / "csi.sock").string(), grpc::InsecureChannelCredentials());
    node_ = pb::Node::NewStub(channel);
    controller_ = pb::Controller::NewStub(channel);
  }

  struct Volume {
    std::string id = "volume-1";
    std::map<std::string, std::string> attributes = {{"bucketName", "corpus"}};
    std::vector<std::string> options = {};
    std::map<std::string, std::string> secrets = {};
    std::string group = {};
    pb::VolumeCapability::AccessMode::Mode mode = pb::VolumeCapability::AccessMode::MULTI_NODE_MULTI_WRITER;
  };
  template <class Request>
  Request RequestFor(const Volume& volume) {
    Request request;
    request.set_volume_id(volume.id);
    auto& capability = *request.mutable_volume_capability();
    capability.mutable_access_mode()->set_mode(volume.mode);
    for (const std::string& option : volume.options) capability.mutable_mount()->add_mount_flags(option);
    capability.mutable_mount()->set_volume_mount_group(volume.group);
    request.mutable_volume_context()->insert(volume.attributes.begin(), volume.attributes.end());
    request.mutable_secrets()->insert(volume.secrets.begin(), volume.secrets.end());
    return request;
  }
  template <class Response, class Stub, class Method, class Request>
  static grpc::Status Ask(Stub& stub, Method method, const Request& request, Response* response = nullptr) {
    grpc::ClientContext context;
    Response ignored;
    return (stub.*method)(&context, request, response ? response : &ignored);
  }
  grpc::Status Stage(const Volume& volume) {
    std::filesystem::create_directories(staging(volume.id));
    auto request = RequestFor<pb::NodeStageVolumeRequest>(volume);
    request.set_staging_target_path(staging(volume.id));
    return Ask<pb::NodeStageVolumeResponse>(*node_, &pb::Node::Stub::NodeStageVolume, request);
  }
  grpc::Status Publish(const Volume& volume, const std::string& pod, bool read_only = false, bool staged = true) {
    auto request = RequestFor<pb::NodePublishVolumeRequest>(volume);
    if (staged) request.set_staging_target_path(staging(volume.id));
    request.set_target_path(target(pod));
    request.set_readonly(read_only);
    return Ask<pb::NodePublishVolumeResponse>(*node_, &pb::Node::Stub::NodePublishVolume, request);
  }
  grpc::Status Unpublish(const Volume& volume, const std::string& pod) {
    pb::NodeUnpublishVolumeRequest request;
    request.set_volume_id(volume.id);
    request.set_target_path(target(pod));
    return Ask<pb::NodeUnpublishVolumeResponse>(*node_, &pb::Node::Stub::NodeUnpublishVolume, request);
  }
  grpc::Status Unstage(const Volume& volume) {
    pb::NodeUnstageVolumeRequest request;
    request.set_volume_id(volume.id);
    request.set_staging_target_path(staging(volume.id));
    return Ask<pb::NodeUnstageVolumeResponse>(*node_, &pb::Node::Stub::NodeUnstageVolume, request);
  }
  pb::NodeGetVolumeStatsResponse Stats(const Volume& volume, const std::string& pod) {
    pb::NodeGetVolumeStatsRequest request;
    request.set_volume_id(volume.id);
    request.set_volume_path(target(pod));
    pb::NodeGetVolumeStatsResponse response;
    Must(Ask(*node_, &pb::Node::Stub::NodeGetVolumeStats, request, &response));
    return response;
  }
  static void Must(const grpc::Status& status) { EXPECT_TRUE(status.ok()) << status.error_message(); }

  std::filesystem::path kubelet() const { return folder_.path() / "k"; }
  /// The folder of a test may be too deep for a socket's path, which has at most 107 bytes.
  const std::filesystem::path& sockets() const { return sockets_.path(); }
  std::string staging(const std::string& volume) const { return kubelet() / "plugins/kubernetes.io/csi" / volume; }
  std::string target(const std::string& pod) const { return kubelet() / "pods" / pod; }

  static std::string Read(const std::filesystem::path& path) {
    auto text = ReadFile(path);
    return text ? *text : text.error().ToString();
  }
  /// The errno of creating a file with this content; 0 if that works.
  static int Write(const std::filesystem::path& path, const std::string& content) {
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!fd) return errno;
    if (::write(fd.get(), content.data(), content.size()) < 0) return errno;
    return ::close(fd.Release()) == 0 ? 0 : errno;
  }
  int MountsHere() const {
    int count = 0;
    for (const MountEntry& entry : ReadMountTable().value_or(std::vector<MountEntry>{})) {
      count += static_cast<int>(entry.point.starts_with(folder_.path().string()));
    }
    return count;
  }
  std::vector<pid_t> Daemons() const {
    std::vector<pid_t> found;
    std::error_code error;
    for (const auto& process : std::filesystem::directory_iterator("/proc", error)) {
      auto arguments = ReadFile(process.path() / "cmdline", 64 * kKiB);
      if (!arguments || !arguments->contains("--status-fd") || !arguments->contains(folder_.path().string())) continue;
      found.push_back(static_cast<pid_t>(std::atoi(process.path().filename().c_str())));
    }
    return found;
  }

  struct LinesSink final : LogSink {
    void Write(std::string_view line) override {
      MutexLock lock(mutex);
      text += line;
      text += '\n';
    }
    Mutex mutex;
    std::string text MR_GUARDED_BY(mutex);
  };
  std::string Log() {
    MutexLock lock(log_->mutex);
    return log_->text;
  }

  TempDir folder_ = *TempDir::Create();
  TempDir sockets_ = *TempDir::Create("/tmp");
  std::shared_ptr<LinesSink> log_ = std::make_shared<LinesSink>();
  std::filesystem::path keeper_socket_;  ///< empty: none
  std::uint64_t node_memory_ = 0;        ///< 0: no limit
  Duration probe_timeout_ = std::chrono::seconds(60);
  std::unique_ptr<s3d::Server> server_;
  Connections connections_{object::ConnectOptions{}};
  std::unique_ptr<LocalMounter> mounter_;
  std::unique_ptr<MounterServer> mounter_server_;
  std::unique_ptr<Mounter> remote_;
  std::unique_ptr<Provisioner> provisioner_;
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<pb::Node::Stub> node_;
  std::unique_ptr<pb::Controller::Stub> controller_;
};

}  // namespace millrace::csi
