#include "millrace/jobs/launchers/node_mounts.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/text.h"
#include "millrace/jobs/launchers/log_follower.h"

namespace millrace::jobs {
namespace {

/// Less than the 60 s that an agent may take to start its ranks.
constexpr Duration kMountTime = std::chrono::seconds(45);
/// Less than the grace time of ranks, in which all nodes of a job must come to their end.
constexpr Duration kPublishTime = std::chrono::seconds(100);
constexpr Duration kMountLeaveTime = std::chrono::seconds(5);

/// Where a service says that it is ready (sd_notify(3)).
class NotifySocket {
 public:
  static Result<NotifySocket> Open() {
    constexpr std::string_view kName = "notify";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    TempDir folder = MR_TRY(TempDir::Create());
    if ((folder.path() / kName).string().size() >= sizeof address.sun_path) folder = MR_TRY(TempDir::Create("/tmp"));
    const std::string path = folder.path() / kName;
    std::memcpy(address.sun_path, path.data(), path.size());
    UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket || ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      return Fail(ErrnoError(errno, "cannot make a socket at " + path));
    }
    return NotifySocket(std::move(folder), std::move(socket), path);
  }
  const std::string& path() const { return path_; }
  int fd() const { return socket_.get(); }
  /// Reads the messages that have come. Returns whether one said that the service is ready.
  bool Ready() const {
    bool ready = false;
    std::array<char, 4096> message;
    ssize_t size;
    while ((size = ::recv(socket_.get(), message.data(), message.size(), 0)) > 0) {
      ready = ready || std::string_view(message.data(), static_cast<std::size_t>(size)).starts_with("READY=1");
    }
    return ready;
  }

 private:
  NotifySocket(TempDir folder, UniqueFd socket, std::string path)
      : folder_(std::move(folder)), socket_(std::move(socket)), path_(std::move(path)) {}
  TempDir folder_;
  UniqueFd socket_;
  std::string path_;
};

}  // namespace

NodeMounts::NodeMounts(Options options) : options_(std::move(options)) { mounted_.resize(options_.mounts.size()); }

NodeMounts::~NodeMounts() {
  Unmount();
  for (auto& mounted : mounted_) {
    if (mounted && !mounted->exit) mounted->process.Wait(kPublishTime);
  }
  // Never a recursive removal: if a mount is still there, the folder is a bucket.
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) ::rmdir(folder->c_str());
}

std::filesystem::path NodeMounts::LogOf(std::size_t index) const {
  return options_.logs / fmt::format("mount-{}.err", index);
}

Status NodeMounts::Complaint(std::size_t index, const ExitState& exit, std::string_view what) const {
  const FolderMount& mount = options_.mounts[index];
  const auto cannot_help = [&](Code code) { return exit.signal == 0 && exit.exit_code == ToExitStatus(code); };
  Code code = Code::kUnavailable;
  for (const Code each : {Code::kInvalidArgument, Code::kNotFound, Code::kPermissionDenied}) {
    if (cannot_help(each)) code = each;
  }
  constexpr int kLines = 3;
  std::string said = TailOf(LogOf(index), 0, kLines);
  if (said.empty()) said = "its mount ended with " + exit.ToString();
  return Fail(code, "{} {} on {}: {}", mount.url, what, mount.path, said);
}

Status NodeMounts::Mount() {
  for (std::size_t index = 0; index < mounted_.size(); ++index) {
    auto& mounted = mounted_[index];
    if (mounted && !mounted->exit) mounted->exit = mounted->process.Poll();
    if (mounted && !mounted->exit) continue;
    MR_TRY(MountOne(index));
  }
  return {};
}

Status NodeMounts::MakeFolder(const std::filesystem::path& folder) {
  std::filesystem::path path;
  for (const std::filesystem::path& part : folder) {
    path /= part;
    if (::mkdir(path.c_str(), 0755) == 0) {
      made_.push_back(path);
    } else if (errno != EEXIST && errno != ENOTCONN) {  // a mount whose server has died; the next one removes it
      return Fail(Code::kInvalidArgument, "cannot make the folder {} of run.mounts: {}", folder.string(),
                  std::generic_category().message(errno));
    }
  }
  return {};
}

Status NodeMounts::MountOne(std::size_t index) {
  const FolderMount& mount = options_.mounts[index];
  std::error_code error;
  MR_TRY(MakeFolder(mount.path));
  const NotifySocket ready = MR_TRY(NotifySocket::Open());
  Subprocess::Options options{
      .argv = {(MR_TRY(ProgramDirectory()) / "millrace").string(), "mount", mount.url, mount.path, "--foreground",
               "--flush-timeout", fmt::format("{}s", kPublishTime / std::chrono::seconds(1))},
      .env = options_.env,
      .stdout_file = LogOf(index),
      .stderr_file = LogOf(index),
      .death_signal = SIGTERM};
  if (mount.read_only) options.argv.emplace_back("--read-only");
  options.env["NOTIFY_SOCKET"] = ready.path();
  options.env["MILLRACE_QUIET"] = "true";
  std::filesystem::remove(LogOf(index), error);  // the messages of an earlier attempt
  Mounted& mounted = mounted_[index].emplace(Mounted{.process = MR_TRY(Subprocess::Start(std::move(options)))});
  const TimePoint until = SystemClock().Now() + kMountTime;
  for (;;) {
    std::array<pollfd, 2> watched = {{{.fd = ready.fd(), .events = POLLIN, .revents = 0},
                                      {.fd = mounted.process.pidfd(), .events = POLLIN, .revents = 0}}};
    const Duration left = until - SystemClock().Now();
    if (left <= Duration(0)) break;
    ::poll(watched.data(), watched.size(),
           static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
    if (ready.Ready()) return {};
    mounted.exit = mounted.process.Poll();
    if (mounted.exit) return Complaint(index, *mounted.exit, "cannot be mounted");
  }
  mounted.exit = mounted.process.Stop(kMountLeaveTime);
  return Fail(Code::kUnavailable, "{} could not be mounted on {} within {} seconds", mount.url, mount.path,
              kMountTime / std::chrono::seconds(1));
}

void NodeMounts::Unmount() {
  for (auto& mounted : mounted_) {
    if (mounted && !mounted->exit) mounted->process.Signal(SIGTERM);
  }
}

std::optional<Status> NodeMounts::Unmounted() {
  for (auto& mounted : mounted_) {
    if (mounted && !mounted->exit) mounted->exit = mounted->process.Poll();
    if (mounted && !mounted->exit) return std::nullopt;
  }
  for (std::size_t index = 0; index < mounted_.size(); ++index) {
    if (mounted_[index] && !mounted_[index]->exit->ok()) {
      return Complaint(index, *mounted_[index]->exit, "does not have all that was written");
    }
  }
  return Status();
}

}  // namespace millrace::jobs
