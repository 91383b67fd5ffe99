// Running a mount: figures, checks, log rotation, the service manager, mount(8).
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "millrace/base/json.h"
#include "tests/mount/mount_fixture.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class MountOperationTest : public MountFixture {
 protected:
  Result<Subprocess> MountInForeground(const std::map<std::string, std::string>& environment) {
    return Subprocess::Start(
        {.argv = {MountProgram::program(), "mount", "--foreground", "--quiet", "s3://bucket", mount_->point()},
         .env = environment,
         .working_directory = {},
         .stdout_file = mount_->scratch() / "out",
         .stderr_file = mount_->scratch() / "out"});
  }
  MountProgram::Ran RunCheck(const std::string& timeout = "10s") {
    return mount_->Run({"mount", "--check", mount_->point().string(), "--check-timeout", timeout});
  }
  /// Runs the first command of packaging/systemd/millrace-check@.service. Returns whether it restarts the mount.
  bool CheckOfServiceRestarts() {
    const char* source = std::getenv("MILLRACE_SOURCE");
    const std::filesystem::path folder = source != nullptr ? source : ".";
    std::string unit = ReadFile(folder / "packaging/systemd/millrace-check@.service").value();
    const std::string begin = "ExecStart=/bin/sh -c '";
    unit = unit.substr(unit.find(begin) + begin.size());
    std::string command = unit.substr(0, unit.find("'\n"));
    const std::string installed = "/usr/bin/millrace";
    command.replace(command.find(installed), installed.size(), MountProgram::program().string());
    command = "systemctl() { echo restarted; }; " + command;
    auto ran = Subprocess::Run({.argv = {"/bin/sh", "-c", command}, .env = {{"DIRECTORY", mount_->point().string()}}});
    EXPECT_TRUE(ran) << ran.error().ToString();
    return ran && ran->stdout_text.contains("restarted");
  }
};

TEST_F(MountOperationTest, StatsTellWhatProgramsDid) {
  mount_->Put("f", std::string(100'000, 'x'));
  MustMount();
  ASSERT_EQ(mount_->Shell("cat f >/dev/null && mkdir d && echo 12345 >d/g && ! rmdir d 2>/dev/null").status, 0);
  auto told = mount_->Run({"stats", mount_->point().string(), "--json"});
  ASSERT_EQ(told.status, 0) << told.output;
  const Json stats = ParseJson(told.output, "stats").value();
  EXPECT_EQ(stats["source"], "s3://bucket");
  EXPECT_EQ(stats["mount_point"], mount_->point().string());
  EXPECT_EQ(stats["data"]["read_bytes"], 100'000);
  EXPECT_EQ(stats["data"]["written_bytes"], 6);
  EXPECT_GE(stats["operations"]["read"]["count"], 1);
  EXPECT_EQ(stats["operations"]["read"]["failures"], 0);
  EXPECT_GE(stats["operations"]["rmdir"]["failures"], 1);
  EXPECT_GT(stats["operations"]["read"]["p99"], 0);
  EXPECT_GE(stats["cache"]["bytes_fetched"], 100'000);
  auto table = mount_->Run({"stats", mount_->point().string()});
  EXPECT_THAT(table.output, HasSubstr("s3://bucket on "));
  EXPECT_THAT(table.output, HasSubstr("operation"));
  auto elsewhere = mount_->Run({"stats", mount_->scratch().string()});
  EXPECT_EQ(elsewhere.status, 1);
  EXPECT_THAT(elsewhere.output, HasSubstr("is not a millrace mount"));
}

TEST_F(MountOperationTest, ListingInDetailCostsTheMountNothingPerName) {
  for (int i = 0; i < 300; ++i) mount_->Put(fmt::format("d/{:03}", i), "x");
  MustMount();
  ASSERT_EQ(mount_->Shell("test $(ls -l d | wc -l) = 301").status, 0);
  auto told = mount_->Run({"stats", mount_->point().string(), "--json"});
  const Json stats = ParseJson(told.output, "stats").value();
  // Only operations that were asked for are in the figures. Some versions of ls ask for no getxattr.
  const auto count = [&](const std::string& operation) {
    return stats.value(Json::json_pointer("/operations/" + operation + "/count"), 0);
  };
  EXPECT_GT(count("readdir"), 0);
  EXPECT_LE(count("getxattr"), 4) << "ACLs and labels: asked for once";
  EXPECT_LE(count("lookup") + count("stat"), 8);
}

TEST_F(MountOperationTest, PrometheusReadsTheSameFigures) {
  mount_->Put("f", "hello");
  auto mounted = mount_->Mount({"--metrics-listen", "127.0.0.1:0", "--log-level", "info"});
  ASSERT_EQ(mounted.status, 0) << mounted.output;
  ASSERT_EQ(mount_->Shell("cat f").output, "hello");
  const std::string log = mounted.output + mount_->log();
  const std::size_t at = log.find("address=127.0.0.1:");
  ASSERT_NE(at, std::string::npos) << log;
  const std::string address = log.substr(at + 8, log.find_first_of(" \n", at) - at - 8);
  auto fetched = mount_->Shell("curl -s --noproxy '*' http://" + address + "/metrics");
  EXPECT_THAT(fetched.output, HasSubstr("millrace_mount_operation_seconds_count{operation=\"read\"} "));
  EXPECT_THAT(fetched.output, HasSubstr("\nmillrace_mount_read_bytes_total 5\n"));
  EXPECT_THAT(fetched.output, HasSubstr("\nmillrace_mount_pending_files 0\n"));
}

TEST_F(MountOperationTest, ChecksTellALiveMountFromADeadOne) {
  EXPECT_EQ(RunCheck().status, 4) << "nothing is mounted";
  MustMount();
  auto live = RunCheck();
  EXPECT_EQ(live.status, 0) << live.output;
  const pid_t daemon = mount_->daemon();
  ASSERT_GT(daemon, 0);
  ::kill(daemon, SIGSTOP);
  auto hanging = RunCheck("100ms");
  ::kill(daemon, SIGCONT);
  EXPECT_NE(hanging.status, 0);
  EXPECT_THAT(hanging.output, HasSubstr("has not answered"));
  ::kill(daemon, SIGKILL);
  EXPECT_NE(RunCheck().status, 0);
}

TEST_F(MountOperationTest, AStoreThatIsGoneFailsTheCheck) {
  MustMount();
  mount_->SetFaults("error=503");
  auto failing = RunCheck();
  EXPECT_NE(failing.status, 0);
  EXPECT_THAT(failing.output, HasSubstr("Input/output error"));
}

TEST_F(MountOperationTest, TheCheckOfTheServiceRestartsOnlyAMountThatDoesNotAnswer) {
  EXPECT_TRUE(CheckOfServiceRestarts()) << "nothing is mounted";
  mount_->Put("f", "hello");
  MustMount();
  EXPECT_FALSE(CheckOfServiceRestarts());
  mount_->StopServer();
  EXPECT_FALSE(CheckOfServiceRestarts()) << "the mount is well";
  EXPECT_NE(RunCheck().status, 0) << "the store is away";
  mount_->StartServer();
  EXPECT_EQ(mount_->Shell("cat f").output, "hello");
  ::kill(mount_->daemon(), SIGKILL);
  EXPECT_TRUE(CheckOfServiceRestarts()) << "its daemon is dead";
}

TEST_F(MountOperationTest, AStoreThatIsGoneDoesNotDelayFiguresNorTheEndOfAMountThatOwesItNothing) {
  mount_->SetAttempts(10);
  MustMount({"--metadata-ttl", "none"});
  Check("echo text > f && cat f && ls -l");
  mount_->StopServer();
  const TimePoint began = SystemClock().Now();
  auto stats = mount_->Run({"stats", mount_->point().string()});
  EXPECT_EQ(stats.status, 0) << stats.output;
  MustUmount();
  EXPECT_LT(SystemClock().Now() - began, std::chrono::seconds(4)) << "one request alone would take more";
}

TEST_F(MountOperationTest, HangupOpensTheLogAnew) {
  MustMount({"--log-level", "info"});
  const auto log = mount_->scratch() / "log", rotated = mount_->scratch() / "log.1";
  std::filesystem::rename(log, rotated);
  ::kill(mount_->daemon(), SIGHUP);
  auto moved = [&] { return ReadFile(log).value_or("").contains("read anew"); };  // said once the new file is in use
  for (int i = 0; i < 2000 && !moved(); ++i) ::usleep(5000);                      // bounded wait for the other process
  EXPECT_TRUE(moved());
  mount_->SetFaults("error=503,op=PutObject");
  EXPECT_NE(mount_->Shell("dd if=/dev/zero of=f bs=10 count=1 conv=fsync").status, 0);
  EXPECT_THAT(mount_->log(), HasSubstr("failed"));
  EXPECT_EQ(ReadFile(rotated).value_or("?").find("failed"), std::string::npos);
}

TEST_F(MountOperationTest, HangupReadsTheCredentialsAnew) {
  auto server = *s3d::Server::Start({.root = mount_->scratch() / "s3d-with-keys",
                                     .access_key = "key",
                                     .secret_key = "secret-of-the-test",
                                     .sync = false});
  ASSERT_TRUE(server->CreateBucket("bucket"));
  const auto credentials = mount_->scratch() / "credentials";
  auto have_secret = [&](std::string_view secret) {
    const std::string text = fmt::format("[default]\naws_access_key_id = key\naws_secret_access_key = {}\n", secret);
    ASSERT_TRUE(WriteFileAtomic(credentials, AsBytes(text)));
  };
  have_secret("secret-of-the-test");
  auto environment = mount_->environment();
  environment.erase("MILLRACE_NO_SIGN_REQUEST");
  environment["AWS_ENDPOINT_URL"] = server->endpoint();
  environment["AWS_SHARED_CREDENTIALS_FILE"] = credentials;
  auto daemon = MountInForeground(environment);
  ASSERT_TRUE(daemon);
  auto write = [&](const std::string& name) {
    std::ofstream file(mount_->point() / name);
    file << "hello";
    file.close();
    return file.good();
  };
  auto eventually = [&](bool works) {  // bounded wait for the other process
    for (int i = 0; i < 2000; ++i) {
      if (write(fmt::format("f-{}-{}", works, i)) == works) return true;
      ::usleep(5000);
    }
    return false;
  };
  for (int i = 0; i < 2000 && RunCheck().status != 0; ++i) ::usleep(5000);
  EXPECT_TRUE(eventually(true)) << ReadFile(mount_->scratch() / "out").value_or("");
  have_secret("another-secret");
  EXPECT_TRUE(write("before")) << "files are read when they are told to be";
  daemon->Signal(SIGHUP);
  EXPECT_TRUE(eventually(false));
  have_secret("secret-of-the-test");
  daemon->Signal(SIGHUP);
  EXPECT_TRUE(eventually(true));
  daemon->Signal(SIGTERM);
  EXPECT_TRUE(daemon->Wait(std::chrono::seconds(20)).has_value());
}

/// The service manager's end of the notification socket.
class Manager {
 public:
  explicit Manager(const std::filesystem::path& path) : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    timeval patience{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  /// The next message; empty when none came.
  std::string Receive() {
    char buffer[512];
    const ssize_t n = ::recv(socket_.get(), buffer, sizeof buffer, 0);
    return n > 0 ? std::string(buffer, static_cast<std::size_t>(n)) : "";
  }

 private:
  UniqueFd socket_;
};

TEST_F(MountOperationTest, TheServiceManagerIsKeptInformed) {
  Manager manager(mount_->scratch() / "notify");
  auto environment = mount_->environment();
  environment["NOTIFY_SOCKET"] = mount_->scratch() / "notify";
  environment["WATCHDOG_USEC"] = "20000";
  auto daemon = MountInForeground(environment);
  ASSERT_TRUE(daemon);
  EXPECT_THAT(manager.Receive(), StartsWith("READY=1\nSTATUS=s3://bucket is mounted on "));
  EXPECT_EQ(manager.Receive(), "WATCHDOG=1");
  EXPECT_EQ(manager.Receive(), "WATCHDOG=1");
  daemon->Signal(SIGTERM);
  std::string last = manager.Receive();
  while (last == "WATCHDOG=1") last = manager.Receive();
  EXPECT_EQ(last, "STOPPING=1");
  EXPECT_TRUE(daemon->Wait(std::chrono::seconds(20)).value_or(ExitState{.exit_code = -1}).ok())
      << ReadFile(mount_->scratch() / "out").value_or("");
}

TEST_F(MountOperationTest, MountEightsHelperMountsFromFstab) {
  mount_->Put("f", "hello");
  const auto helper = mount_->scratch() / "mount.millrace";
  std::filesystem::create_symlink(MountProgram::program(), helper);
  auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), helper.string());
    const auto output = mount_->scratch() / "helped";
    std::filesystem::remove(output);
    auto child = Subprocess::Start({.argv = std::move(arguments),
                                    .env = mount_->environment(),
                                    .working_directory = {},
                                    .stdout_file = output,
                                    .stderr_file = output});
    auto state = child->Wait(std::chrono::seconds(60));
    return MountProgram::Ran{state ? state->exit_code : -1, ReadFile(output).value_or("")};
  };
  auto mounted =
      run({"s3://bucket", mount_->point(), "-n", "-o",
           "rw,_netdev,nofail,x-systemd.automount,ro,file_mode=0640,log_file=" + (mount_->scratch() / "log").string()});
  ASSERT_EQ(mounted.status, 0) << mounted.output;
  EXPECT_EQ(mount_->Shell("cat f && stat -c ' %a' f").output, "hello 640\n");
  EXPECT_EQ(mount_->Shell("touch g").status, 1) << "read-only";
  EXPECT_EQ(mount_->Umount().status, 0);
  auto unknown = run({"s3://bucket", mount_->point(), "-o", "no_such_thing=1"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.output, HasSubstr("no-such-thing"));
  EXPECT_EQ(run({"s3://bucket"}).status, 2);
}

TEST_F(MountOperationTest, OptionsOfMountpointMountABucketByItsName) {
  mount_->Put("f", "here");
  const std::string logs = (mount_->scratch() / "logs").string();
  const auto run = mount_->Run({"--region", "us-east-1", "mount", "bucket", mount_->point().string(), "--max-threads",
                                "4", "--metadata-ttl", "60", "--force-path-style", "--requester-pays", "--log-metrics",
                                "--upload-checksums", "crc32c", "-l", logs, "-d"});
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("--log-metrics has no effect: `millrace stats`"));
  Check("cat f", "here");
  std::string name = mount_->point().string().substr(1) + ".log";
  std::ranges::replace(name, '/', '-');
  EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(logs) / name)) << name;
}

TEST_F(MountOperationTest, FilesHaveTheAttributesThatOptionsOfMountpointAskFor) {
  MustMount({"--storage-class", "STANDARD_IA", "--sse", "AES256"});
  ASSERT_EQ(mount_->Shell("echo x >f").status, 0);
  const Json head = ParseJson(mount_->Run({"head", "--json", "s3://bucket/f"}).output, "head").value();
  EXPECT_EQ(head.value("storage_class", ""), "STANDARD_IA") << head.dump();
}

TEST_F(MountOperationTest, OptionsOfMountpointWithoutAMeaningNameWhatToUse) {
  const auto run = mount_->Run({"mount", "bucket", mount_->point().string(), "--cache-xz", "b--x-s3"});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.output,
              HasSubstr("--cache-xz is an option of Mountpoint: name a folder of a local disk with --cache"));
}

TEST_F(MountOperationTest, AFolderOfTheNameComesBeforeABucket) {
  const auto run = mount_->Run({"mount", "no-such-bucket", mount_->point().string(), "--read-only"});
  EXPECT_NE(run.status, 0);
  EXPECT_THAT(run.output, HasSubstr("s3://no-such-bucket")) << run.output;
  const auto folder = mount_->Run({"mount", "/", mount_->point().string(), "--dry-run"});
  EXPECT_THAT(folder.output, HasSubstr("would mount / on"));
}

TEST_F(MountOperationTest, AQuotaIsShownAndHeld) {
  mount_->Put("old", std::string(40'960, 'x'));
  MustMount({"--quota", "102400"});
  Check("df -B1 --output=size,used . | tail -1 | xargs", "102400 40960\n");
  ASSERT_EQ(mount_->Shell("head -c 40960 /dev/zero >new").status, 0);
  const auto refused = mount_->Shell("head -c 40960 /dev/zero >more");
  EXPECT_NE(refused.status, 0);
  EXPECT_THAT(refused.output, HasSubstr("No space left on device"));
  ASSERT_EQ(mount_->Shell("rm old && head -c 40960 /dev/zero >more").status, 0) << "the room of a removed file";
  ASSERT_EQ(mount_->Shell("head -c 40960 /dev/zero >new").status, 0) << "a file that is replaced counts once";
  ASSERT_EQ(mount_->Shell("mv more new && head -c 40960 /dev/zero >next").status, 0) << "the room of a replaced file";
  ASSERT_EQ(mount_->Shell("head -c 1 /dev/zero >next && head -c 40960 /dev/zero >last").status, 0)
      << "of one that gets shorter";
}

TEST_F(MountOperationTest, DirectoriesCanGiveTheirGroupToWhatIsMadeInThem) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root has files of another group";
  MustMount({"--gid", "2000", "--dir-mode", "02770"});
  Check("echo x >f && mkdir d && echo y >d/g && stat -c %g f d d/g | xargs", "2000 2000 2000\n");
  Check("stat -c %A d | cut -c7", "s\n");
}

}  // namespace
}  // namespace millrace
