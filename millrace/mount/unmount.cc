#include "millrace/mount/unmount.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "millrace/base/files/files.h"
#include "millrace/base/json.h"
#include "millrace/mount/point/control.h"
#include "millrace/vfs/staging/staging_area.h"

namespace millrace::mount {
namespace {

/// Blocks until the process ends. Returns false once the deadline has passed or `stop` has fired.
bool AwaitEnd(int pidfd, const Deadline& deadline, const std::stop_token& stop) {
  constexpr int kPollMs = 100;  // the delay with which `stop` is noticed; a person does not notice it
  while (!deadline.Passed(SystemClock()) && !stop.stop_requested()) {
    pollfd ended{pidfd, POLLIN, 0};
    if (::poll(&ended, 1, kPollMs) > 0) return true;
  }
  return false;
}

/// Blocks until the process ends, or other places have shown the file system for a while: those are returned. A
/// container that starts has copies of all mounts for a moment.
std::vector<MountView> AwaitEndOrViews(int pidfd, const std::string& device, const Deadline& deadline,
                                       const std::stop_token& stop) {
  constexpr auto kMoment = std::chrono::seconds(2);
  std::vector<MountView> lasting;
  for (int look = 0; look < 2; ++look) {
    if (AwaitEnd(pidfd, std::min(deadline, Deadline::After(SystemClock(), kMoment)), stop)) return {};
    std::vector<MountView> views = FindViews(device);
    if (look > 0)
      std::erase_if(views, [&](const auto& view) { return std::ranges::find(lasting, view) == lasting.end(); });
    lasting = std::move(views);
    if (lasting.empty()) break;
  }
  return lasting;
}

}  // namespace

Result<UnmountReport> Unmount(const std::string& path, const UnmountOptions& options, const std::stop_token& stop) {
  UnmountReport report;
  report.mount_point = options.asked != nullptr ? path : MR_TRY(ResolveMountPoint(path));
  const std::string& point = report.mount_point;
  auto mounted = MR_TRY(FindMount(point));
  if (!mounted)
    return Fail(Code::kNotFound, "nothing is mounted on {}; `findmnt -t fuse.millrace` lists what is mounted", point);
  if (!mounted->type.starts_with("fuse")) {
    return Fail(Code::kInvalidArgument, "{} is a {} mount, not one of millrace; use `umount`", point, mounted->type);
  }
  report.source = mounted->source;
  DaemonAnswer answered;
  if (options.asked == nullptr) {
    auto daemon = IdentifyDaemon(point);
    if (!daemon && daemon.error().code() != Code::kUnavailable) return Fail(daemon.error());
    if (!daemon) {  // it was killed: nothing is left to wait for
      MR_TRY(Detach(point, /*lazy=*/true));
      return report;
    }
    answered = *std::move(daemon);
  }
  const DaemonAnswer& daemon = options.asked != nullptr ? *options.asked : answered;
  report.daemon = daemon.status.pid;
  report.files = daemon.status.files_being_written;
  report.bytes = daemon.status.bytes_being_written;
  const Json& stats = daemon.stats;
  const Json staging = stats.value("staging", Json::object());
  if (stats.value("pid_namespace", PidNamespace()) != PidNamespace()) {
    return Fail(Code::kUnsupported,
                "the daemon of {} runs in another PID namespace, as in a container: nobody here can wait for what it "
                "publishes. Unmount it there; `umount {}` detaches it here",
                point, point);
  }
  const UniqueFd& process = daemon.process;
  if (Status detached = Detach(point, options.lazy); !detached) {
    if (detached.error().code() != Code::kBusy) return Fail(detached.error());
    report.outcome = UnmountOutcome::kInUse;
    return report;
  }
  const Deadline deadline = Deadline::After(SystemClock(), options.timeout);
  if (process && options.everywhere) {
    // It publishes and ends on its own if the file system is mounted nowhere else.
    ::syscall(SYS_pidfd_send_signal, process.get(), SIGTERM, nullptr, 0);
  } else if (process) {
    report.elsewhere = AwaitEndOrViews(process.get(), mounted->device, deadline, stop);
    if (!report.elsewhere.empty()) {
      report.outcome = UnmountOutcome::kShownElsewhere;
      return report;
    }
  }
  if (process && !AwaitEnd(process.get(), deadline, stop)) {
    report.outcome = UnmountOutcome::kStillPublishing;
    return report;
  }
  report.staging_directory = staging.value("directory", "");
  const auto left = vfs::StagingArea::FindLeftovers(report.staging_directory, staging.value("target", ""));
  report.files = left.files;
  report.bytes = left.bytes;
  if (left.files > 0) report.outcome = UnmountOutcome::kFilesLeft;
  return report;
}

}  // namespace millrace::mount
