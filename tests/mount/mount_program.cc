#include "tests/mount/mount_program.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "millrace/object/blocking.h"
#include "millrace/object/open/open.h"

namespace millrace {

Status MountProgram::Available() {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) return Fail(Code::kUnsupported, "there is no usable /dev/fuse");
  if (::geteuid() != 0 && ::access("/usr/bin/fusermount3", X_OK) != 0) {
    return Fail(Code::kUnsupported, "mounting needs root or fusermount3");
  }
  return {};
}

MountProgram::MountProgram() : folder_(*TempDir::Create()) {
  StartServer();
  EXPECT_TRUE(server_->CreateBucket("bucket"));
  object::ConnectOptions options;
  options.endpoint_url = server_->endpoint();
  options.region = "us-east-1";
  options.no_sign_request = true;
  auto connection = object::OpenConnection(options);
  EXPECT_TRUE(connection) << connection.error().ToString();
  connection_ = *std::move(connection);
  store_ = object::Locate(*connection_, "s3://bucket")->store;
  std::filesystem::create_directory(point());
}

MountProgram::~MountProgram() {
  if (server_) server_->SetFaults("");
  if (::umount2(point().c_str(), MNT_DETACH) != 0 && errno == EPERM) {
    (void)Subprocess::Run({.argv = {"fusermount3", "-uz", "--", point().string()}});
  }
  if (pid_t pid = daemon(); pid > 0) ::kill(pid, SIGKILL);
}

void MountProgram::StartServer() {
  s3d::Options options{.root = folder_.path() / "buckets", .anonymous = true, .sync = false};
  if (!endpoint_.empty()) options.listen = endpoint_.substr(endpoint_.rfind('/') + 1);
  auto server = s3d::Server::Start(options);
  ASSERT_TRUE(server) << server.error().ToString();
  server_ = *std::move(server);
  endpoint_ = server_->endpoint();
}

void MountProgram::StopServer() { server_.reset(); }

std::map<std::string, std::string> MountProgram::environment() const {
  return {{"AWS_ENDPOINT_URL", endpoint_},
          {"AWS_REGION", "us-east-1"},
          {"AWS_MAX_ATTEMPTS", std::to_string(attempts_)},
          {"MILLRACE_NO_SIGN_REQUEST", "true"},
          {"XDG_CACHE_HOME", (folder_.path() / "home").string()}};
}

std::filesystem::path MountProgram::program() {
  const char* bin = std::getenv("MILLRACE_BIN");
  return std::filesystem::absolute(bin ? bin : "build/release/bin") / "millrace";
}

MountProgram::Ran MountProgram::Run(std::vector<std::string> arguments) {
  const auto output = folder_.path() / "output";
  std::filesystem::remove(output);
  arguments.insert(arguments.begin(), program());
  auto child = Subprocess::Start({.argv = std::move(arguments),
                                  .env = environment(),
                                  .working_directory = {},
                                  .stdout_file = output,
                                  .stderr_file = output,
                                  .own_process_group = true});
  EXPECT_TRUE(child) << child.error().ToString();
  auto state = child->Wait(std::chrono::seconds(60));
  EXPECT_TRUE(state) << "still running after a minute";
  return {state ? (state->signal ? 128 + state->signal : state->exit_code) : -1, ReadFile(output).value_or("")};
}

MountProgram::Ran MountProgram::Mount(std::vector<std::string> flags) {
  return MountUrl("s3://bucket", std::move(flags));
}

MountProgram::Ran MountProgram::MountUrl(const std::string& url, std::vector<std::string> flags) {
  std::vector<std::string> arguments = {"mount", url, point().string(), "--log-file",
                                        (folder_.path() / "log").string()};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return Run(std::move(arguments));
}

MountProgram::Ran MountProgram::Umount() { return Run({"umount", point().string()}); }

MountProgram::Ran MountProgram::Shell(const std::string& command) {
  const auto output = folder_.path() / "shell";
  std::filesystem::remove(output);
  auto child = Subprocess::Start(
      {.argv = {"/bin/sh", "-c", command}, .working_directory = point(), .stdout_file = output, .stderr_file = output});
  EXPECT_TRUE(child) << child.error().ToString();
  auto state = child->Wait(std::chrono::seconds(60));
  EXPECT_TRUE(state) << command << ": still running after a minute";
  return {state ? (state->signal ? 128 + state->signal : state->exit_code) : -1, ReadFile(output).value_or("")};
}

pid_t MountProgram::daemon() const {
  std::error_code error;
  for (const auto& process : std::filesystem::directory_iterator("/proc", error)) {
    auto arguments = ReadFile(process.path() / "cmdline", 64 * kKiB);
    if (!arguments || !arguments->contains("--status-fd") || !arguments->contains(point().string())) continue;
    return static_cast<pid_t>(std::atoi(process.path().filename().c_str()));
  }
  return 0;
}

std::string MountProgram::log() const { return ReadFile(folder_.path() / "log").value_or(""); }

void MountProgram::SetFaults(std::string_view spec) {
  Status set = server_->SetFaults(spec);
  EXPECT_TRUE(set) << set.error().ToString();
}

std::string MountProgram::Object(const std::string& key) {
  auto content = object::GetAll(*store_, key, 64 * kMiB);
  return content && *content ? (*content)->bytes : "<absent>";
}

void MountProgram::Put(const std::string& key, std::string_view content) {
  auto put = object::Put(*store_, key, AsBytes(content));
  EXPECT_TRUE(put) << put.error().ToString();
}

}  // namespace millrace
