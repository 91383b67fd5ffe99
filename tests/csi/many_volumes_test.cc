// Many volumes of a node whose processes are killed and stopped: no wrong byte, no error in a pod, no call without an
// end, and nothing left. MILLRACE_CSI_VOLUMES: how many (default 8).
#include <csi.grpc.pb.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/base/files/mount_table.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/mount/daemon/session_lease.h"
#include "millrace/s3d/server.h"
#include "tests/support/kill.h"

namespace millrace::csi {
namespace {

namespace pb = ::csi::v1;
namespace fs = std::filesystem;

/// Longer than any call may take.
constexpr auto kCallLimit = std::chrono::minutes(3);
constexpr char kUser[] = "tested-key", kWord[] = "tested-secret";

/// A node as Kubernetes runs it: keeper, mounter and driver are processes of their own, and the pods another one. This
/// process has no file of a volume open: its children would close the file before they run their programs, and wait
/// for daemons that they are to start.
class ManyVolumes : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "mounting for pods needs root";
    if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "there is no usable /dev/fuse";
    const char* bin = std::getenv("MILLRACE_BIN");
    program_ = fs::absolute(bin ? bin : "build/release/bin") / "millrace-csi";
    fs::create_directories(kubelet() / "pods");
    server_ = *s3d::Server::Start(
        {.root = folder_.path() / "buckets", .access_key = kUser, .secret_key = kWord, .sync = false});
    ASSERT_TRUE(server_->CreateBucket("corpus"));
    StartKeeper();
    StartMounter();
    StartDriver();
  }
  void TearDown() override {
    pods_.reset();
    driver_.reset();
    mounter_.reset();
    for (const MountEntry& entry : ReadMountTable().value_or(std::vector<MountEntry>{})) {
      if (entry.point.starts_with(folder_.path().string())) ::umount2(entry.point.c_str(), MNT_DETACH);
    }
    for (const pid_t daemon : Daemons()) ::kill(daemon, SIGKILL);
    keeper_.reset();
  }

  std::optional<Subprocess> Start(std::vector<std::string> words) {
    words.insert(words.begin(), program_.string());
    auto started = Subprocess::Start({.argv = std::move(words),
                                      .env = {{"AWS_ENDPOINT_URL", server_->endpoint()},
                                              {"AWS_REGION", "us-east-1"},
                                              {"AWS_ACCESS_KEY_ID", kUser},
                                              {"AWS_SECRET_ACCESS_KEY", kWord}},
                                      .stdout_file = log(),
                                      .stderr_file = log()});
    EXPECT_TRUE(started) << started.error().ToString();
    return *std::move(started);
  }
  void StartKeeper() { keeper_ = Start({"keeper", "--socket", keeper_socket()}); }
  void StartMounter() {
    mounter_ = Start({"mounter", "--socket", (sockets_.path() / "mounter.sock").string(), "--kubelet-folder",
                      kubelet().string(), "--state-folder", (folder_.path() / "state").string(), "--keeper",
                      keeper_socket(), "--mount-memory", "256MiB"});
  }
  void StartDriver() {
    const std::string socket = (sockets_.path() / "csi.sock").string();
    driver_ = Start({"node", "--socket", socket, "--node-id", "n", "--mounter",
                     (sockets_.path() / "mounter.sock").string(), "--kubelet-folder", kubelet().string()});
    node_ = pb::Node::NewStub(grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials()));
  }
  static void Kill(std::optional<Subprocess>& process) {
    process->Signal(SIGKILL);
    process->Wait();
  }

  /// Blocks until the process does not run: a signal takes effect after it was sent.
  static void Stop(Subprocess& process) {
    process.Signal(SIGSTOP);
    const std::string stat = fmt::format("/proc/{}/stat", process.pid());
    while (!ReadFile(stat, 4 * kKiB).value_or("").contains(") T ")) std::this_thread::yield();
  }

  template <class Response, class Method, class Request>
  grpc::Status CallOnce(Method method, const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
    context.set_wait_for_ready(true);
    Response response;
    return (node_.get()->*method)(&context, request, &response);
  }
  /// Calls as kubelet does: again and again, until the call is done. Each call must end by itself.
  template <class Response, class Method, class Request>
  void Call(const char* what, Method method, const Request& request) {
    const TimePoint began = SystemClock().Now();
    while (true) {
      const TimePoint asked = SystemClock().Now();
      const grpc::Status status = CallOnce<Response>(method, request);
      if (status.ok()) return;
      ASSERT_LT(SystemClock().Now() - asked, kCallLimit) << what << " has no end: " << status.error_message();
      ASSERT_LT(SystemClock().Now() - began, std::chrono::minutes(5)) << what << ": " << status.error_message();
      std::this_thread::yield();
    }
  }
  template <class Request>
  Request RequestFor(int volume) const {
    Request request;
    request.set_volume_id("volume-" + std::to_string(volume));
    request.mutable_volume_capability()->mutable_access_mode()->set_mode(
        pb::VolumeCapability::AccessMode::MULTI_NODE_MULTI_WRITER);
    for (const char* option : {"allow-delete", "allow-overwrite", "memory-budget=128MiB"}) {
      request.mutable_volume_capability()->mutable_mount()->add_mount_flags(option);
    }
    (*request.mutable_volume_context())["bucketName"] = "corpus";
    (*request.mutable_volume_context())["prefix"] = "v" + std::to_string(volume) + "/";
    return request;
  }
  pb::NodeStageVolumeRequest StageRequest(int volume) const {
    fs::create_directories(staging(volume));
    auto stage = RequestFor<pb::NodeStageVolumeRequest>(volume);
    stage.set_staging_target_path(staging(volume));
    return stage;
  }
  void Publish(int volume) {
    Call<pb::NodeStageVolumeResponse>("NodeStageVolume", &pb::Node::Stub::NodeStageVolume, StageRequest(volume));
    auto publish = RequestFor<pb::NodePublishVolumeRequest>(volume);
    publish.set_staging_target_path(staging(volume));
    publish.set_target_path(target(volume));
    Call<pb::NodePublishVolumeResponse>("NodePublishVolume", &pb::Node::Stub::NodePublishVolume, publish);
  }
  void Unpublish(int volume) {
    pb::NodeUnpublishVolumeRequest unpublish;
    unpublish.set_volume_id("volume-" + std::to_string(volume));
    unpublish.set_target_path(target(volume));
    Call<pb::NodeUnpublishVolumeResponse>("NodeUnpublishVolume", &pb::Node::Stub::NodeUnpublishVolume, unpublish);
    pb::NodeUnstageVolumeRequest unstage;
    unstage.set_volume_id("volume-" + std::to_string(volume));
    unstage.set_staging_target_path(staging(volume));
    Call<pb::NodeUnstageVolumeResponse>("NodeUnstageVolume", &pb::Node::Stub::NodeUnstageVolume, unstage);
  }
  /// Calls `work` for each volume, several at a time, as kubelet does.
  void ForAll(int volumes, const std::function<void(int)>& work) {
    std::atomic<int> next = 0;
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int volume = next++; volume < volumes; volume = next++) work(volume);
      });
    }
  }

  std::vector<pid_t> Daemons() const {
    std::vector<pid_t> found;
    std::error_code error;
    for (const auto& process : fs::directory_iterator("/proc", error)) {
      const auto arguments = ReadFile(process.path() / "cmdline", 64 * kKiB);
      if (!arguments || !arguments->contains("--status-fd") || !arguments->contains(folder_.path().string())) continue;
      found.push_back(static_cast<pid_t>(std::atoi(process.path().filename().c_str())));
    }
    return found;
  }
  /// Blocks until the keeper has every mount, with a process that serves it and a plan.
  void AwaitServed(int volumes) {
    const TimePoint began = SystemClock().Now();
    while (true) {
      const auto held = mount::ListHeldSessions(keeper_socket());
      const auto served = [](const mount::HeldSessionInfo& each) {
        return each.held && each.has_device && each.has_plan;
      };
      if (held && std::ranges::count_if(*held, served) == volumes) return;
      ASSERT_LT(SystemClock().Now() - began, std::chrono::minutes(5)) << "mounts are not served again";
      ASSERT_FALSE(pods_->Poll()) << "a pod has ended: " << *pods_->ReadStdout(kMiB);
      std::this_thread::yield();
    }
  }

  fs::path kubelet() const { return folder_.path() / "k"; }
  fs::path log() const { return folder_.path() / "log"; }
  std::string keeper_socket() const { return (sockets_.path() / "keeper.sock").string(); }
  std::string staging(int volume) const {
    return kubelet() / "plugins/kubernetes.io/csi" / std::to_string(volume) / "globalmount";
  }
  std::string target(int volume) const { return kubelet() / "pods" / ("pod-" + std::to_string(volume)); }

  TempDir folder_ = *TempDir::Create();
  TempDir sockets_ = *TempDir::Create("/tmp");  // the path of a socket must be short
  fs::path program_;
  std::unique_ptr<s3d::Server> server_;
  std::optional<Subprocess> keeper_, mounter_, driver_, pods_;
  std::unique_ptr<pb::Node::Stub> node_;
};

TEST_F(ManyVolumes, SurviveTheEndOfEveryProcess) {
  const char* wanted = std::getenv("MILLRACE_CSI_VOLUMES");
  const int volumes = wanted != nullptr ? std::atoi(wanted) : 8;
  ASSERT_GT(volumes, 0);
  ForAll(volumes, [&](int volume) { Publish(volume); });
  if (HasFailure()) FAIL() << ReadFile(log()).value_or("");
  for (const auto& mount : fs::directory_iterator(folder_.path() / "state/mounts")) {
    if (ReadFile(mount.path() / "log").value_or("").contains("cannot send requests again")) {
      GTEST_SKIP() << "the kernel is too old to keep mounts";
    }
  }
  const char* source = std::getenv("MILLRACE_SOURCE");
  std::vector<std::string> words = {"python3", fs::path(source ? source : ".") / "tests/csi/volume_worker.py"};
  for (int volume = 0; volume < volumes; ++volume) words.push_back(target(volume));
  pods_ =
      *Subprocess::Start({.argv = std::move(words), .capture_stdout = true, .null_stdin = false, .pipe_stdin = true});

  Random random(11);
  const int rounds = wanted != nullptr ? 12 : 6;  // each kind of end twice, or once
  for (int round = 0; round < rounds && !HasFatalFailure(); ++round) {
    AwaitServed(volumes);
    const int what = round % 6;  // every process, in turn
    if (what == 0 || what == 3) {
      const auto daemons = Daemons();
      const std::size_t most = std::max<std::size_t>(1, daemons.size() / 5);
      for (std::size_t i = 0; i < most; ++i) testing_support::KillAndAwaitEnd(daemons[random.Below(daemons.size())]);
    } else if (what == 1) {  // the mounter, and a daemon while it is away
      Kill(mounter_);
      testing_support::KillAndAwaitEnd(Daemons().front());
      StartMounter();
    } else if (what == 2) {
      Kill(keeper_);
      StartKeeper();
    } else if (what == 4) {  // a keeper that is stopped, and a daemon that dies meanwhile
      Stop(*keeper_);
      testing_support::KillAndAwaitEnd(Daemons().front());
      const grpc::Status refused =
          CallOnce<pb::NodeStageVolumeResponse>(&pb::Node::Stub::NodeStageVolume, StageRequest(volumes));
      EXPECT_EQ(refused.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << refused.error_message();
      EXPECT_TRUE(refused.error_message().contains("is its process stopped?")) << refused.error_message();
      keeper_->Signal(SIGCONT);
      Publish(volumes);
      Unpublish(volumes);
    } else {  // the driver, and a daemon that is stopped while its volume is published again
      Kill(driver_);
      StartDriver();
      const pid_t daemon = Daemons().front();
      ::kill(daemon, SIGSTOP);
      std::jthread publish([&] { Publish(0); });
      ::kill(daemon, SIGCONT);
    }
  }
  if (!HasFailure()) AwaitServed(volumes);
  pods_->CloseStdin();
  const std::string said = pods_->ReadStdout(kMiB).value_or("");
  EXPECT_TRUE(pods_->Wait()->ok()) << said;
  EXPECT_GT(std::atoi(said.c_str()), volumes) << "the pods did too little for this test to mean something";
  ForAll(volumes, [&](int volume) { Unpublish(volume); });
  EXPECT_TRUE(Daemons().empty());
  const auto left = mount::ListHeldSessions(keeper_socket());
  EXPECT_TRUE(left && left->empty());
  for (const MountEntry& entry : *ReadMountTable())
    EXPECT_FALSE(entry.point.starts_with(kubelet().string())) << entry.point;
  EXPECT_TRUE(fs::is_empty(folder_.path() / "state/mounts"));
  if (HasFailure()) std::fputs(ReadFile(log()).value_or("").c_str(), stderr);
}

}  // namespace
}  // namespace millrace::csi
