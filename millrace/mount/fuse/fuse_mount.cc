#include "millrace/mount/fuse/fuse_mount.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/base/process/subprocess.h"
#include "millrace/base/threads/sync.h"
#include "millrace/mount/fuse/handlers.h"
#include "millrace/mount/fuse/request.h"
#include "millrace/mount/fuse/resumable_session.h"
#include "millrace/mount/fuse/session_header.h"
#include "millrace/mount/point/mount_point.h"

namespace millrace::mount {
namespace {

constexpr auto kLookForEnd = std::chrono::seconds(1);  // the delay after an unmount until waiting reads are cancelled

/// A mount point, and what was mounted there. The mount may have been detached, while other mount namespaces show it
/// on.
class CoveredPoint {
 public:
  CoveredPoint() = default;
  /// Call right after mounting.
  explicit CoveredPoint(std::string mount_point) : mount_point_(std::move(mount_point)) {
    if (const auto mounted = FindMount(mount_point_); mounted && *mounted) device_ = (*mounted)->device;
  }
  /// Returns whether that mount is there: another one may be, or none.
  bool IsOurs() const {
    const auto mounted = FindMount(mount_point_);
    return mounted && *mounted && (*mounted)->device == device_;
  }

 private:
  std::string mount_point_, device_;
};

/// Closes the session's FUSE descriptor, and keeps libfuse from unmounting what is at the session's mount point.
void LeaveMountPoint(fuse_session* session) {
  // libfuse unmounts nothing if its descriptor reports an error (fuse_kern_unmount), as a pipe without a reader does.
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return;
  ::close(pipe[0]);
  ::dup2(pipe[1], fuse_session_fd(session));
  ::close(pipe[1]);
}

class FuseServer final : public FuseMount, private RequestContext {
 public:
  FuseServer(vfs::Tree& served, FuseOptions how) : RequestContext(served, std::move(how)) {}
  ~FuseServer() override;

  Status Mount();
  Status Resume(MountToResume mount);
  Status Serve(std::function<void()> live, std::stop_token stop) override;

 private:
  static void Init(void* self, fuse_conn_info* connection);
  Status NewSession();
  Status BeginKept();
  Status ServeByLibfuse();
  bool IsUnmounted() const;

  bool mounted_ = false;
  CoveredPoint covered_;
  std::function<void()> live_;
  ResumableSession kept_;  ///< in use with options.session
};

Status FuseServer::NewSession() {
  std::string source;
  for (char c : options.source) {  // the separator of mount options
    if (c == ',' || c == '\\') source += '\\';
    source += c;
  }
  std::string flags = fmt::format("fsname={},subtype=millrace,default_permissions,max_read={}", source, kMaxRequest);
  if (options.allow_other) flags += ",allow_other";
  if (options.allow_root) flags += ",allow_root";
  if (options.read_only) flags += ",ro";
  std::vector<std::string> words = {"millrace", "-o", flags};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  fuse_args arguments = FUSE_ARGS_INIT(static_cast<int>(argv.size()), argv.data());
  fuse_lowlevel_ops operations = CountedHandlers();
  operations.init = &Init;
  session = fuse_session_new(&arguments, &operations, sizeof operations, static_cast<RequestContext*>(this));
  fuse_opt_free_args(&arguments);
  if (session == nullptr) return Fail(Code::kInternal, "libfuse refuses the mount options {}", flags);
  return {};
}

Status FuseServer::Mount() {
  MR_TRY(NewSession());
  if (fuse_session_mount(session, options.mount_point.c_str()) != 0) {
    const bool others = options.allow_other || options.allow_root;
    if (::geteuid() != 0 && !FindProgram("fusermount3")) {
      return Fail(
          Code::kUnsupported,
          "cannot mount on {}: there is no fusermount3, without which only root mounts: install the package fuse3",
          options.mount_point);
    }
    return Fail(Code::kIo, "cannot mount on {}{}", options.mount_point,
                others && ::geteuid() != 0 ? ": --allow-other and --allow-root need user_allow_other in /etc/fuse.conf"
                                           : "; see the message above");
  }
  mounted_ = true;
  covered_ = CoveredPoint(options.mount_point);
  if (options.session == nullptr) return {};
  kept = &kept_;
  return {};
}

Status FuseServer::Resume(MountToResume mount) {
  SessionStart start = MR_TRY(ParseHeader(mount.state->header)).start;
  if (start.request.empty()) return Fail(Code::kCorrupt, "the log of the mount lacks the first request of the kernel");
  MR_TRY(NewSession());
  kept = &kept_;
  MR_TRY(kept->Resume(session, std::move(start), mount.device.get()));
  mount.device.Release();
  mounted_ = true;
  covered_ = CoveredPoint(options.mount_point);
  files.Restore(tree, *mount.state);
  tree.EndRestore(*mount.state);
  options.log.Warning("went on with the mount of a process that died",
                      {{"inodes", mount.state->inodes.size()},
                       {"files", mount.state->files.size()},
                       {"directories", mount.state->directories.size()}});
  return {};
}

/// Serves the first request, and makes the session one that another process can go on with.
Status FuseServer::BeginKept() {
  const bool resumed = kept->resumed();
  MR_TRY(kept->ServeInit(session));
  if (!resumed && !kept->start().can_resend()) {
    options.log.Warning(
        "this kernel cannot send requests again (Linux 6.9 can): open files break if this process dies");
    options.session->Remove();
  } else {
    if (!resumed) options.session->PutHeader(FormatHeader({options.source, options.began, kept->start()}));
    MR_TRY(options.keep(fuse_session_fd(session)));
  }
  if (resumed) MR_TRY(ResumableSession::RequestResend(session));
  if (live_) live_();
  return {};
}

bool FuseServer::IsUnmounted() const {
  pollfd device{fuse_session_fd(session), 0, 0};
  return ::poll(&device, 1, 0) > 0;
}

FuseServer::~FuseServer() {
  if (session != nullptr) {
    const bool here = mounted_ && !IsUnmounted() && covered_.IsOurs();
    if (mounted_ && !here) LeaveMountPoint(session);
    // libfuse does not unmount what another process has mounted.
    if (mounted_) fuse_session_unmount(session);
    if (here && kept_.resumed()) (void)Detach(options.mount_point, /*lazy=*/true);
    fuse_session_destroy(session);
  }
}

Status FuseServer::Serve(std::function<void()> live, std::stop_token stop) {
  live_ = std::move(live);
  if (kept != nullptr) MR_TRY(BeginKept());
  // libfuse waits in sem_wait. Only a signal to this thread interrupts it.
  struct sigaction nothing{};
  nothing.sa_handler = [](int) {};
  sigaction(SIGUSR1, &nothing, nullptr);
  std::jthread stopper([&, server = pthread_self()](std::stop_token served) {
    Mutex mutex;
    CondVar woken;
    std::stop_callback wake(stop, [&] {
      MutexLock lock(mutex);
      woken.NotifyAll();
    });
    MutexLock lock(mutex);
    while (!woken.WaitUntil(mutex, std::chrono::steady_clock::now() + kLookForEnd, served,
                            [&] { return stop.stop_requested(); })) {
      if (served.stop_requested()) return;
      // Unmounted: no program waits for reads under way. Cancels them, so that they do not delay the end.
      if (IsUnmounted()) ended.request_stop();
    }
    ended.request_stop();
    if (kept != nullptr) return kept->Stop(session);
    fuse_session_exit(session);
    while (!served.stop_requested()) {  // until the serving thread has seen the signal
      pthread_kill(server, SIGUSR1);
      woken.WaitUntil(mutex, std::chrono::steady_clock::now() + std::chrono::milliseconds(10), served,
                      [] { return false; });
    }
  });
  const Status served = kept != nullptr ? kept->Serve(session, options.max_threads) : ServeByLibfuse();
  stopper.request_stop();
  stopper.join();
  Status flushed = tree.FlushAll({.stop = {}, .deadline = Deadline::After(SystemClock(), options.flush_timeout)});
  if (!flushed) {
    const vfs::PendingWrites left = tree.pending();
    options.log.Error("not all that was written could be published; the next mount goes on with what is staged",
                      {{"files", left.files}, {"bytes", left.bytes}, {"reason", flushed.error()}});
    return flushed;
  }
  return served;
}

Status FuseServer::ServeByLibfuse() {
  fuse_loop_config* config = fuse_loop_cfg_create();
  fuse_loop_cfg_set_clone_fd(config, 1);
  fuse_loop_cfg_set_max_threads(config, static_cast<unsigned>(options.max_threads));
  fuse_loop_cfg_set_idle_threads(config, static_cast<unsigned>(options.max_threads));
  const int result = fuse_session_loop_mt(session, config);
  fuse_loop_cfg_destroy(config);
  if (result < 0) return Fail(ErrnoError(-result, "serving the mount"));
  return {};
}

void FuseServer::Init(void* self, fuse_conn_info* connection) {
  auto& server = static_cast<FuseServer&>(*static_cast<RequestContext*>(self));
  connection->want &= ~(FUSE_CAP_WRITEBACK_CACHE | FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE |
                        FUSE_CAP_HANDLE_KILLPRIV);            // the kernel drops set-id bits itself, by chmod
  connection->max_read = static_cast<unsigned>(kMaxRequest);  // must repeat the mount option
  connection->max_write = static_cast<unsigned>(kMaxRequest);
  connection->max_readahead = static_cast<unsigned>(server.options.kernel_read_ahead);
  connection->max_background = 64;
  connection->congestion_threshold = 48;
  connection->time_gran = 1;
  if (server.kept == nullptr) {
    if (server.live_) server.live_();
    return;
  }
  if (server.kept->resumed()) connection->want = server.kept->start().want;  // as the kernel knows it
  server.kept->start().want = connection->want;
}

}  // namespace

Result<std::unique_ptr<FuseMount>> FuseMount::Create(vfs::Tree& tree, FuseOptions options) {
  auto server = std::make_unique<FuseServer>(tree, std::move(options));
  MR_TRY(server->Mount());
  return server;
}

Result<std::unique_ptr<FuseMount>> FuseMount::Resume(vfs::Tree& tree, FuseOptions options, MountToResume mount) {
  auto server = std::make_unique<FuseServer>(tree, std::move(options));
  MR_TRY(server->Resume(std::move(mount)));
  return server;
}

}  // namespace millrace::mount
