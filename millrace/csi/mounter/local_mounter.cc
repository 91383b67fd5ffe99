#include "millrace/csi/mounter/local_mounter.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "millrace/base/files/managed_folder.h"
#include "millrace/base/files/trusted_folder.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/csi/mounter/probe.h"
#include "millrace/csi/volume/mount_options.h"
#include "millrace/mount/point/mount_point.h"
#include "millrace/vfs/staging/staging_area.h"

namespace millrace::csi {
namespace {

constexpr char kTokenFile[] = "token";
constexpr char kSessionLog[] = "session";
constexpr char kMountType[] = "fuse.millrace";
constexpr std::string_view kMemoryFlag = "--memory-budget=";
/// A daemon keeps this much of its log, and as much of the log before. A store that is away for days logs each request.
constexpr std::uint64_t kLogLimit = 1 * kMiB;
/// The time that Unmount waits for the daemon to publish. Shorter than the two minutes that kubelet waits for a call.
constexpr Duration kStopTimeout = std::chrono::seconds(90);
/// How long a mounter that starts looks for mounts without a daemon. Pods wait for it meanwhile.
constexpr Duration kCleanUpTimeout = std::chrono::seconds(30);

/// The topmost mount at a path of ours; nothing if there is none.
/// Errors: kAlreadyExists if another program mounted there.
Result<std::optional<MountEntry>> FindOurs(const std::string& path) {
  auto mounted = MR_TRY(mount::FindMount(path));
  if (mounted && mounted->type != kMountType) {
    return Fail(Code::kAlreadyExists, "a {} file system is mounted on {}", mounted->type, path);
  }
  return mounted;
}

/// Makes the folder `target` unless it is there.
Status MakeFolder(const TargetPath& target) {
  if (::mkdirat(target.parent.get(), target.name.c_str(), 0750) == 0 || errno == EEXIST) return {};
  return Fail(ErrnoError(errno, "cannot make " + target.path));
}

/// A handle of what is at `target` now, mounted or not, that does not ask a mount's daemon.
Result<UniqueFd> OpenTarget(const TargetPath& target) {
  UniqueFd fd(::openat(target.parent.get(), target.name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return Fail(ErrnoError(errno, "cannot open " + target.path));
  return fd;
}

std::string ProcPath(const UniqueFd& fd) { return fmt::format("/proc/self/fd/{}", fd.get()); }

Status CheckPlan(const MountPlan& plan) {
  if (!plan.url.starts_with("s3://") || plan.url.size() == std::string_view("s3://").size()) {
    return Fail(Code::kInvalidArgument, "{} names no bucket", plan.url);
  }
  for (const std::string& flag : plan.flags) {
    if (!IsVolumeFlag(flag)) return Fail(Code::kInvalidArgument, "a volume may not be mounted with {}", flag);
  }
  if (!plan.driver_identity && !HidesDriverIdentity(plan.environment)) {
    return Fail(Code::kInvalidArgument, "a volume with keys of its own must hide those of the driver");
  }
  return CheckVolumeEnvironment(plan.environment);
}

}  // namespace

std::string PlanFingerprint(const MountPlan& plan) {
  std::string text = plan.url;
  for (const std::string& flag : plan.flags) text += "\n" + flag;
  return ShortHash(fmt::format("{}\n{}", text, plan.disk_cache));
}

Result<std::unique_ptr<LocalMounter>> LocalMounter::Open(LocalMounterOptions options) {
  KubeletFolder folder = MR_TRY(KubeletFolder::Open(options.kubelet_folder));
  MR_TRY(OpenTrustedFolder(options.state_folder, {.what = "the mounter's folder", .cure = "choose another one"},
                           MissingFolder::kMake));
  std::unique_ptr<LocalMounter> mounter(new LocalMounter(std::move(options), std::move(folder)));
  mounter->CleanUp(mounter->kept_.Watch());
  for (const MountRecord& record : mounter->records_.All()) {
    const auto mounted = FindOurs(record.target);
    if (!mounted || !*mounted) continue;
    MutexLock lock(mounter->mutex_);
    mounter->memory_[record.target] = record.memory;
  }
  mounter->watcher_ = std::jthread([raw = mounter.get()](const std::stop_token& stop) { raw->WatchDaemons(stop); });
  return mounter;
}

LocalMounter::LocalMounter(LocalMounterOptions options, KubeletFolder folder)
    : options_(std::move(options)),
      folder_(std::move(folder)),
      records_(options_.state_folder / "mounts"),
      keeper_(MakeKeeperClient(options_.keeper)),
      kept_({.keeper = keeper_.get(),
             .start_timeout = options_.start_timeout,
             .start = [this](const DaemonPlan& plan, Duration timeout,
                             const std::stop_token& stop) { return StartDaemon(plan, timeout, stop); },
             .kill = [this](const std::string& target) { KillDaemon(target); },
             .detach = [](const std::string& target) { return mount::Detach(target, /*lazy=*/true); },
             .metrics = options_.metrics,
             .log = options_.log}) {}

LocalMounter::~LocalMounter() {
  watcher_ = {};
  kept_.Stop();
  MutexLock lock(mutex_);
  for (auto& [target, daemon] : daemons_) daemon.process.Detach();
}

void LocalMounter::CleanUp(const std::set<std::string>& kept) {
  const TimePoint deadline = SystemClock().Now() + kCleanUpTimeout;
  for (const MountRecord& record : records_.All()) {
    if (SystemClock().Now() > deadline) {
      options_.log.Warning("several mounts do not answer; what is left without a daemon is removed when it is used",
                           {{"volume", record.volume}, {"target", record.target}});
      return;
    }
    const auto mounted = mount::FindMount(record.target);
    if (!mounted || !*mounted || (*mounted)->type != kMountType) continue;
    if (kept.contains(KeptMounts::NameOf(record.target))) continue;  // its daemon is, or will be, there
    const auto answer = ProbeMount(record.target, options_.probe_timeout);
    if (!answer || *answer || answer->error().code() != Code::kUnavailable) continue;
    // The record stays until the volume is unstaged: it says whose keys the mount had.
    const Status detached = mount::Detach(record.target, /*lazy=*/true);
    options_.log.Warning("a mount without its daemon is removed",
                         {{"volume", record.volume},
                          {"target", record.target},
                          {"result", detached ? "done" : detached.error().ToString()}});
  }
}

/// Returns where kubelet's folder shows the file system of this device, but for `path`.
Result<std::vector<std::string>> LocalMounter::FindOtherPoints(const std::string& device,
                                                               const std::string& path) const {
  std::vector<std::string> points;
  for (const MountEntry& mount : MR_TRY(ReadMountTable())) {
    if (mount.device == device && mount.point != path && folder_.Contains(mount.point)) points.push_back(mount.point);
  }
  return points;
}

Result<InFlightTable::Hold> LocalMounter::HoldVolume(const std::string& volume, bool exclusive) {
  const std::string name = "the volume " + volume;
  return exclusive ? in_flight_.Begin(name) : in_flight_.BeginShared(name);
}

/// Fails if another pod has a mount of the volume of its own. `staging`: a mount that is no pod's, or empty.
Status LocalMounter::CheckExclusive(const std::string& volume, const std::string& target,
                                    const std::string& staging) const {
  for (const MountRecord& record : records_.All()) {
    if (record.volume != volume || record.target == target || record.target == staging) continue;
    const auto mounted = MR_TRY(mount::FindMount(record.target));
    if (mounted) return Fail(Code::kPreconditionFailed, "another pod of this node uses the volume {}", volume);
  }
  return {};
}

/// The memory budget of a plan's daemon, in bytes.
Result<std::uint64_t> LocalMounter::MemoryOf(const MountPlan& plan) const {
  std::uint64_t bytes = options_.mount_memory;
  for (const std::string& flag : plan.flags) {  // the last one counts
    if (flag.starts_with(kMemoryFlag)) bytes = MR_TRY(ParseBytes(flag.substr(kMemoryFlag.size())));
  }
  return bytes;
}

/// Counts the memory of a mount that is to be made. Errors: kResourceExhausted if the node has too little left.
Status LocalMounter::TakeMemory(const std::string& target, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  std::uint64_t taken = 0;
  for (const auto& [other, of_other] : memory_) taken += other == target ? 0 : of_other;
  if (options_.node_memory != 0 && (taken > options_.node_memory || bytes > options_.node_memory - taken)) {
    return Fail(Code::kResourceExhausted,
                "the volumes of this node may use {} of memory (--node-memory): {} are given to {} mounts, this one "
                "needs {}; use fewer volumes, or set the option memory-budget",
                FormatBytes(options_.node_memory), FormatBytes(taken), memory_.size() - memory_.count(target),
                FormatBytes(bytes));
  }
  memory_[target] = bytes;
  return {};
}

void LocalMounter::ReleaseMemory(const std::string& target) {
  MutexLock lock(mutex_);
  memory_.erase(target);
}

int LocalMounter::AwaitPublished(Duration at_most) {
  const TimePoint deadline = SystemClock().Now() + at_most;
  const auto waiting = [&] {
    int files = 0;
    for (const MountRecord& record : records_.All()) {
      const auto mounted = FindOurs(record.target);
      if (!mounted || !*mounted) continue;
      const auto answer = ProbeMount(record.target, options_.probe_timeout);
      if (!answer || !*answer) continue;
      const Json pending = (*answer)->stats.value("pending", Json::object());
      files += pending.value("waiting", 0) - pending.value("failing", 0);
    }
    return files;
  };
  int files = waiting();
  while (files > 0 && SystemClock().Now() < deadline) {
    SystemClock().SleepFor(std::chrono::milliseconds(100), {});
    files = waiting();
  }
  return files;
}

void LocalMounter::WatchDaemons(const std::stop_token& stop) {
  // The delay until the log says that a daemon ended, and until its process is reaped. With a keeper, pods
  // wait for the next daemon.
  const Duration pause = options_.keeper.empty() ? Duration(std::chrono::seconds(1)) : std::chrono::milliseconds(100);
  while (SystemClock().SleepFor(pause, stop)) {
    const std::vector<EndedDaemon> ended = TakeEnded();
    const std::set<std::string> kept = kept_.Watch();
    for (const EndedDaemon& daemon : ended) {
      const bool goes_on = kept.contains(KeptMounts::NameOf(daemon.target));
      options_.log.Log(goes_on ? LogLevel::kWarning : LogLevel::kError,
                       goes_on
                           ? "the daemon of a mount ended; another one takes its place"
                           : "the daemon of a mount ended; pods that use it get errors until they are started again",
                       {{"volume", daemon.volume}, {"target", daemon.target}, {"cause", daemon.cause}});
    }
  }
}

/// Removes the daemons that have ended, and returns those whose mounts are still there: a daemon that was asked to end
/// has no record any more, or its mount is gone.
std::vector<LocalMounter::EndedDaemon> LocalMounter::TakeEnded() {
  std::vector<EndedDaemon> ended;
  MutexLock lock(mutex_);
  for (auto entry = daemons_.begin(); entry != daemons_.end();) {
    const auto state = entry->second.process.Poll();
    if (!state) {
      ++entry;
      continue;
    }
    if (const auto mounted = mount::FindMount(entry->first); mounted && *mounted && records_.Read(entry->first)) {
      ended.push_back({.volume = entry->second.volume, .target = entry->first, .cause = state->ToString()});
    }
    entry = daemons_.erase(entry);
  }
  return ended;
}

Status LocalMounter::Mount(const MountRequest& request) {
  MR_TRY(CheckPlan(request.plan));
  const TargetPath target = MR_TRY(folder_.Find(request.target));
  const InFlightTable::Hold hold = MR_TRY(in_flight_.Begin(target.path));
  // Two pods that want a volume for themselves at once: one is checked, and mounted, before the other is checked.
  const InFlightTable::Hold volume = MR_TRY(HoldVolume(request.volume, request.exclusive));
  if (request.exclusive) MR_TRY(CheckExclusive(request.volume, target.path, ""));
  return MountHere(request, target);
}

Status LocalMounter::MountHere(const MountRequest& request, const TargetPath& target) {
  const auto record = records_.Read(target.path);
  const std::string fingerprint = PlanFingerprint(request.plan);
  // A request without the volume's keys must not get a mount with the driver's keys instead.
  if (record && !record->driver_identity && request.plan.driver_identity) {
    return Fail(
        Code::kPreconditionFailed,
        "the mount of this volume is gone, and its secret came when it was staged; delete the pods of this node "
        "that use it, so that kubelet stages it again");
  }
  if (MR_TRY(FindOurs(target.path))) {
    const auto answer = ProbeMount(target.path, options_.probe_timeout);
    const bool is_same =
        record && record->fingerprint == fingerprint && record->driver_identity == request.plan.driver_identity;
    if (!answer && is_same)
      MR_TRY(kept_.RenewKeys(PlanDaemon(request, target), {}));  // wrong keys keep it from starting
    if (!answer) return Fail(Code::kUnavailable, "the mount on {} does not answer", target.path);
    if (*answer) {
      if (!is_same) return Fail(Code::kAlreadyExists, "{} is mounted with other options", target.path);
      MR_TRY(WriteToken(request, target));  // kubelet publishes again before the old one expires
      return kept_.RenewKeys(PlanDaemon(request, target), (*answer)->process);
    }
    if (answer->error().code() != Code::kUnavailable) return Fail(answer->error());
    MR_TRY(mount::Detach(target.path, /*lazy=*/true));
    options_.log.Warning("the daemon of a mount was gone; it is mounted again",
                         {{"volume", request.volume}, {"target", target.path}});
  }
  const std::uint64_t memory = MR_TRY(MemoryOf(request.plan));
  MR_TRY(TakeMemory(target.path, memory));
  Status made = MountAnew(request, target, memory);
  if (!made) ReleaseMemory(target.path);
  return made;
}

Status LocalMounter::MountAnew(const MountRequest& request, const TargetPath& target, std::uint64_t memory) {
  const bool is_new = !records_.Read(target.path);
  MR_TRY(MakeFolder(target));
  MR_TRY(records_.Write({.volume = request.volume,
                         .target = target.path,
                         .fingerprint = PlanFingerprint(request.plan),
                         .driver_identity = request.plan.driver_identity,
                         .memory = memory}));
  MR_TRY(WriteToken(request, target));
  Status started = StartDaemon(request, target);
  if (!started && is_new) records_.RemoveRecord(target.path);
  return started;
}

Status LocalMounter::WriteToken(const MountRequest& request, const TargetPath& target) const {
  if (request.plan.token.empty()) return {};
  return WriteFileAtomic(records_.FolderOf(target.path) / kTokenFile, AsBytes(request.plan.token), 0600);
}

/// The folder below which writes of a volume are staged: a volume's mounts publish what a killed daemon of the volume
/// left, and no others do.
std::filesystem::path LocalMounter::StagingOf(const std::string& volume) const {
  return options_.state_folder / "staging" / ShortHash(volume);
}

/// The staging folder of a mount. A mount that is kept has its own: when it goes on, nobody owns its files for a
/// moment, and another mount of the volume would take them.
std::filesystem::path LocalMounter::StagingOf(const std::string& volume, const TargetPath& target) const {
  return options_.keeper.empty() ? StagingOf(volume) : StagingOf(volume) / KeptMounts::NameOf(target.path);
}

/// Gives a new mount what mounts of its volume left that are over. Call before the keeper knows the new one.
void LocalMounter::HandOverStaged(const std::string& volume, const TargetPath& target) const {
  namespace fs = std::filesystem;
  const fs::path shared = StagingOf(volume), own = StagingOf(volume, target);
  const auto kept = kept_.Names();
  if (!kept) return;  // then no mount is known to be over
  std::error_code error;
  fs::create_directories(shared, error);
  std::vector<fs::path> over = {shared};
  for (const auto& entry : fs::directory_iterator(shared, error)) {
    if (entry.is_directory(error) && !kept->contains(entry.path().filename())) over.push_back(entry.path());
  }
  for (const fs::path& folder : over) {
    if (folder == own || !fs::exists(folder / ManagedFolder::kMarkerName, error)) continue;
    const auto moved = vfs::StagingArea::HandOver(folder, own);
    if (!moved) {
      options_.log.Error("what an earlier mount of a volume left cannot be handed over; it stays staged",
                         {{"volume", volume}, {"folder", folder}, {"reason", moved.error()}});
    } else if (*moved > 0) {
      options_.log.Warning("what an earlier mount of a volume left is handed over to the next one",
                           {{"volume", volume}, {"folder", folder}, {"files", *moved}});
    }
    // The keeper may have lost its memory while the mount's daemon lives.
    const bool ended = folder != shared && !fs::exists(options_.state_folder / "mounts" / folder.filename(), error);
    const bool empty = std::ranges::none_of(fs::directory_iterator(folder, error),
                                            [](const auto& file) { return file.path().extension() == ".record"; });
    if (moved && ended && empty) fs::remove_all(folder, error);
  }
}

Subprocess::Options LocalMounter::DaemonOptions(const MountRequest& request, const TargetPath& target) const {
  const std::filesystem::path log = records_.FolderOf(target.path) / "log";
  const std::filesystem::path staging = StagingOf(request.volume, target);
  Subprocess::Options start{
      .argv = {options_.program, "mount", request.plan.url, target.path, "--allow-other", "--log-file", log.string(),
               fmt::format("--log-limit={}", kLogLimit), "--staging-dir", staging.string()},
      .working_directory = "/",
      .stdout_file = log,
      .stderr_file = log,
      .die_with_parent = false};
  if (!options_.keeper.empty()) {
    start.argv.insert(start.argv.end(),
                      {"--keeper", options_.keeper.string(), "--kept-name", KeptMounts::NameOf(target.path),
                       "--session-log", (records_.FolderOf(target.path) / kSessionLog).string()});
  }
  start.argv.insert(start.argv.end(), request.plan.flags.begin(), request.plan.flags.end());
  auto has = [&](std::string_view flag) {
    return std::ranges::any_of(request.plan.flags, [&](const std::string& f) { return f.starts_with(flag); });
  };
  if (!has(kMemoryFlag)) start.argv.push_back(fmt::format("--memory-budget={}", options_.mount_memory));
  if (request.plan.disk_cache) {
    start.argv.insert(start.argv.end(), {"--cache", (options_.state_folder / "cache").string()});
    if (!has("--max-cache-size=")) start.argv.push_back(fmt::format("--max-cache-size={}", options_.cache_bytes));
  }
  for (const auto& [name, value] : request.plan.environment) {
    if (value.empty()) {
      start.unset_env.push_back(name);
    } else {
      start.env[name] = value;
    }
  }
  if (!request.plan.token.empty()) {
    constexpr char kVariable[] = "AWS_WEB_IDENTITY_TOKEN_FILE";
    std::erase(start.unset_env, kVariable);
    start.env[kVariable] = (records_.FolderOf(target.path) / kTokenFile).string();
  }
  return start;
}

DaemonPlan LocalMounter::PlanDaemon(const MountRequest& request, const TargetPath& target) const {
  return {.volume = request.volume,
          .target = target.path,
          .url = request.plan.url,
          .process = DaemonOptions(request, target)};
}

Status LocalMounter::StartDaemon(const MountRequest& request, const TargetPath& target) {
  HandOverStaged(request.volume, target);
  return kept_.StartFirst(PlanDaemon(request, target));
}

Status LocalMounter::StartDaemon(const DaemonPlan& plan, Duration timeout, const std::stop_token& stop) {
  const std::filesystem::path log = records_.FolderOf(plan.target) / "log";
  std::error_code error;
  if (std::filesystem::file_size(log, error) > kLogLimit && !error) std::filesystem::remove(log, error);
  for (const char* folder : {"staging", "cache"}) {
    std::filesystem::create_directory(options_.state_folder / folder, error);
  }
  auto process = StartMountDaemon(plan.process, log, timeout, stop);
  if (!process) return Fail(process.error().Context("cannot mount " + plan.url));
  MutexLock lock(mutex_);
  daemons_.insert_or_assign(plan.target, Daemon{.volume = plan.volume, .process = *std::move(process)});
  return {};
}

void LocalMounter::KillDaemon(const std::string& target) {
  MutexLock lock(mutex_);
  if (const auto found = daemons_.find(target); found != daemons_.end()) found->second.process.Signal(SIGKILL);
}

Status LocalMounter::Bind(const BindRequest& request) {
  const TargetPath from = MR_TRY(folder_.Find(request.source));
  const TargetPath to = MR_TRY(folder_.Find(request.target));
  const InFlightTable::Hold hold = MR_TRY(in_flight_.Begin(to.path));
  // The volume must not be unstaged between the look at its mount and the moment when the pod has it.
  const InFlightTable::Hold source = MR_TRY(in_flight_.BeginShared(from.path));
  const auto record = records_.Read(from.path);
  const InFlightTable::Hold volume = MR_TRY(HoldVolume(record ? record->volume : from.path, request.exclusive));
  const auto shown = MR_TRY(FindOurs(from.path));
  if (!shown) return Fail(Code::kNotFound, "no volume is mounted on {}", from.path);
  if (request.exclusive) {
    if (record) MR_TRY(CheckExclusive(record->volume, to.path, from.path));
    for (const std::string& other : MR_TRY(FindOtherPoints(shown->device, from.path))) {
      if (other == to.path) continue;
      return Fail(Code::kPreconditionFailed, "another pod of this node uses the volume, at {}", other);
    }
  }
  const auto there = MR_TRY(FindOurs(to.path));
  if (there && there->device == shown->device) return {};
  if (there) {
    const auto answer = ProbeMount(to.path, options_.probe_timeout);
    if (!answer || *answer || answer->error().code() != Code::kUnavailable) {
      return Fail(Code::kAlreadyExists, "{} shows another volume", to.path);
    }
    MR_TRY(mount::Detach(to.path, /*lazy=*/true));
  }
  MR_TRY(MakeFolder(to));
  // By way of handles, so that nobody can put a link where they were checked.
  const UniqueFd source_root = MR_TRY(OpenTarget(from)), covered = MR_TRY(OpenTarget(to));
  if (::mount(ProcPath(source_root).c_str(), ProcPath(covered).c_str(), nullptr, MS_BIND, nullptr) != 0) {
    return Fail(ErrnoError(errno, "cannot show the volume on " + to.path));
  }
  const UniqueFd bound = MR_TRY(OpenTarget(to));
  const unsigned long flags = MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | (request.read_only ? MS_RDONLY : 0);
  if (::mount(nullptr, ProcPath(bound).c_str(), nullptr, flags, nullptr) != 0) {
    const Error failed = ErrnoError(errno, "cannot restrict the mount on " + to.path);
    (void)mount::Detach(to.path, /*lazy=*/true);
    return Fail(failed);
  }
  return {};
}

Status LocalMounter::StopDaemon(const std::string& path, const MountRecord& record) {
  const auto answer = ProbeMount(path, options_.probe_timeout);
  if (!answer && kept_.CannotBeRestarted(path)) return kept_.Abandon(path, record.volume);
  if (!answer) return Fail(Code::kUnavailable, "the mount on {} does not answer; is its process stopped?", path);
  if (!*answer && answer->error().code() != Code::kUnavailable) return Fail(answer->error());
  if (const auto mounted = MR_TRY(FindOurs(path))) {
    const auto pods = MR_TRY(FindOtherPoints(mounted->device, path));
    if (!pods.empty()) return Fail(Code::kBusy, "{} is in use at {}", path, pods.front());
  }
  if (!*answer) return mount::Detach(path, /*lazy=*/true);  // nothing is left to wait for
  // Other mount namespaces of the node may have copies, made by programs that have nothing to do with the volume.
  const mount::UnmountOptions unmount{.everywhere = true, .timeout = kStopTimeout, .asked = &**answer};
  auto report = MR_TRY(mount::Unmount(path, unmount, {}));
  using Outcome = mount::UnmountOutcome;
  switch (report.outcome) {
    case Outcome::kInUse:
      return Fail(Code::kBusy, "{} is in use", path);
    case Outcome::kShownElsewhere:
    case Outcome::kStillPublishing:
      return Fail(Code::kDeadlineExceeded, "the daemon of {} (process {}) still publishes {} files ({})", path,
                  report.daemon, report.files, FormatBytes(report.bytes));
    case Outcome::kFilesLeft:
      options_.log.Error("files of a volume are not in the bucket; its next mount on this node publishes them",
                         {{"volume", record.volume},
                          {"target", path},
                          {"files", report.files},
                          {"folder", report.staging_directory.string()}});
      break;
    case Outcome::kUnmounted:
      break;
  }
  return {};
}

Status LocalMounter::UnmountHere(const TargetPath& target) {
  while (const auto mounted = MR_TRY(FindOurs(target.path))) {
    if (const auto record = records_.Read(target.path)) {
      MR_TRY(StopDaemon(target.path, *record));
      records_.Remove(target.path);
    } else {
      MR_TRY(mount::Detach(target.path, /*lazy=*/false));
    }
  }
  records_.Remove(target.path);
  kept_.ForgetMount(target.path);
  ReleaseMemory(target.path);
  return {};
}

Status LocalMounter::Unmount(const std::string& path, bool remove_folder) {
  auto found = folder_.Find(path);
  if (!found && found.error().code() == Code::kNotFound) return {};
  const TargetPath target = MR_TRY(std::move(found));
  const InFlightTable::Hold hold = MR_TRY(in_flight_.Begin(target.path));
  MR_TRY(UnmountHere(target));
  if (!remove_folder || ::unlinkat(target.parent.get(), target.name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) {
    return {};
  }
  return Fail(ErrnoError(errno, "cannot remove " + target.path));
}

Result<MountState> LocalMounter::Inspect(const std::string& path) {
  const TargetPath target = MR_TRY(folder_.Find(path));
  if (!MR_TRY(FindOurs(target.path))) return Fail(Code::kNotFound, "no volume is mounted on {}", path);
  MountState state;
  if (const auto record = records_.Read(target.path)) {
    state.fingerprint = record->fingerprint;
    state.driver_identity = record->driver_identity;
  }
  const auto answer = ProbeMount(target.path, options_.probe_timeout);
  if (!answer) {
    state.health = MountHealth::kSilent;
    state.problem = fmt::format("the mount has not answered for {}", FormatDuration(options_.probe_timeout));
    return state;
  }
  if (!*answer) {
    state.health = MountHealth::kGone;
    state.problem = answer->error().ToString();
    return state;
  }
  if (const auto space = ProbeSpace(target.path, options_.probe_timeout)) {
    const auto unit = static_cast<std::int64_t>(space->f_frsize);
    state.total_bytes = unit * static_cast<std::int64_t>(space->f_blocks);
    state.available_bytes = unit * static_cast<std::int64_t>(space->f_bavail);
    state.used_bytes = state.total_bytes - unit * static_cast<std::int64_t>(space->f_bfree);
    state.total_inodes = static_cast<std::int64_t>(space->f_files);
    state.available_inodes = static_cast<std::int64_t>(space->f_favail);
    state.used_inodes = state.total_inodes - static_cast<std::int64_t>(space->f_ffree);
  }
  const Json pending = (*answer)->stats.value("pending", Json::object());
  if (const int failing = pending.value("failing", 0); failing > 0) {
    state.problem = fmt::format("{} files cannot be published: {}", failing, pending.value("reason", ""));
  }
  return state;
}

}  // namespace millrace::csi
