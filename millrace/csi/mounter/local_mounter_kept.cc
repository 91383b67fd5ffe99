// The mounts of a LocalMounter that the node's keeper has: they go on when their daemons die.
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "millrace/base/files/managed_folder.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/text.h"
#include "millrace/csi/mounter/local_mounter.h"
#include "millrace/mount/daemon/session_lease.h"
#include "millrace/mount/point/mount_point.h"
#include "millrace/vfs/staging/staging_area.h"

namespace millrace::csi {
namespace {

constexpr Duration kFirstRestart = std::chrono::milliseconds(200), kLastRestart = std::chrono::seconds(30);
/// The next daemon of a mount asks its store before it answers. Programs wait for it: giving up helps nobody.
constexpr Duration kRestartTimeout = std::chrono::minutes(10);

}  // namespace

std::string LocalMounter::SessionName(const std::string& target) { return ShortHash(target); }

/// Starts daemons again that died, and gives a keeper that lost its memory the plans. Returns the names of the mounts
/// that the keeper has.
std::set<std::string> LocalMounter::WatchKeeper() {
  const auto kept = mount::ListHeldSessions(options_.keeper);
  if (!kept) return {};  // mounts go on without it; the next one gets everything again
  std::set<std::string> names;
  std::vector<std::pair<std::string, std::string>> unknown;
  std::vector<std::string> left;
  {
    MutexLock lock(mutex_);
    for (const mount::HeldSessionInfo& each : *kept) {
      if (each.has_device) names.insert(each.name);
      if (!each.held && each.has_device) left.push_back(each.name);
      const auto plan = plans_.find(each.name);
      if (each.held && !each.has_plan && plan != plans_.end()) unknown.emplace_back(each.name, plan->second.Encode());
    }
  }
  for (const auto& [name, plan] : unknown) (void)mount::StoreDaemonPlan(options_.keeper, name, plan);
  BeginRestarts(left);
  return names;
}

/// Starts daemons of mounts, unless that is under way or must wait. A daemon whose store does not answer holds up no
/// other.
void LocalMounter::BeginRestarts(const std::vector<std::string>& names) {
  // As many in each round of the watcher as a node's processors may well start.
  constexpr int kTogether = 8;
  int begun = 0;
  MutexLock lock(mutex_);
  std::erase_if(starting_, [](const auto& start) { return start.second.ended->load(); });
  const TimePoint now = SystemClock().Now();
  for (const std::string& name : names) {
    if (begun == kTogether) return;
    const auto retry = retries_.find(name);
    if (starting_.contains(name) || (retry != retries_.end() && now < retry->second.at)) continue;
    auto ended = std::make_shared<std::atomic<bool>>(false);
    starting_.insert_or_assign(
        name,
        Starting{.began = now, .ended = ended, .thread = std::jthread([this, name, ended](const std::stop_token& stop) {
                                                 Restart(name, stop);
                                                 *ended = true;
                                               })});
    ++begun;
  }
}

/// Starts the daemon of a mount that the keeper has. Needs no hold of the target: a daemon whose mount is being removed
/// ends, and only one daemon can hold a name at the keeper.
void LocalMounter::Restart(const std::string& name, const std::stop_token& stop) {
  auto text = mount::ReadDaemonPlan(options_.keeper, name);
  auto plan = text ? DaemonPlan::Decode(*text) : Fail(text.error());
  if (!plan) {
    MutexLock lock(mutex_);
    if (const auto known = plans_.find(name); known != plans_.end()) plan = known->second;
  }
  if (!plan) {
    options_.log.Error("the daemon of a mount died, and nobody knows its plan any more; its pods get errors",
                       {{"mount", name}, {"reason", plan.error()}});
    return void(mount::ForgetHeldSession(options_.keeper, name));
  }
  const Status started = StartDaemon(*plan, kRestartTimeout, stop);
  if (!started && stop.stop_requested()) return;
  MutexLock lock(mutex_);
  if (started) {
    retries_.erase(name);
    options_.log.Warning("the daemon of a mount died; another one goes on with the mount",
                         {{"volume", plan->volume}, {"target", plan->target}});
    plans_.insert_or_assign(name, *std::move(plan));
    return;
  }
  Retry& retry = retries_.try_emplace(name, Retry{{}, kFirstRestart}).first->second;
  options_.log.Error("the daemon of a mount died, and cannot be started again yet; its pods wait",
                     {{"volume", plan->volume},
                      {"target", plan->target},
                      {"again_in", FormatDuration(retry.pause)},
                      {"reason", started.error()}});
  retry.at = SystemClock().Now() + retry.pause;
  retry.pause = std::min<Duration>(2 * retry.pause, kLastRestart);
}

/// Gives a new mount what mounts of its volume left that are over. Call before the keeper knows the new one.
void LocalMounter::HandOverStaged(const std::string& volume, const TargetPath& target) const {
  namespace fs = std::filesystem;
  const fs::path shared = StagingOf(volume), own = StagingOf(volume, target);
  std::set<std::string> kept;
  if (!options_.keeper.empty()) {
    const auto listed = mount::ListHeldSessions(options_.keeper);
    if (!listed) return;  // then no mount is known to be over
    for (const mount::HeldSessionInfo& each : *listed) kept.insert(each.name);
  }
  std::error_code error;
  fs::create_directories(shared, error);
  std::vector<fs::path> over = {shared};
  for (const auto& entry : fs::directory_iterator(shared, error)) {
    if (entry.is_directory(error) && !kept.contains(entry.path().filename())) over.push_back(entry.path());
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

/// Compares the keys of a request with those that the mount's process was started with. They differ if a Secret has
/// changed. Then another process is started with the new keys, and goes on with what programs have open. `daemon`: the
/// process that serves the mount; 0 if none answers.
Status LocalMounter::RenewKeys(const MountRequest& request, const TargetPath& target, pid_t daemon) {
  if (options_.keeper.empty()) return {};
  const std::string name = SessionName(target.path);
  const auto listed = mount::ListHeldSessions(options_.keeper);
  if (!listed) return {};  // kubelet asks again
  const auto kept = std::ranges::find(*listed, name, &mount::HeldSessionInfo::name);
  if (kept == listed->end() || !kept->has_device) return {};
  const auto text = mount::ReadDaemonPlan(options_.keeper, name);
  const auto known = text ? DaemonPlan::Decode(*text) : Fail(text.error());
  if (!known) return {};  // the watcher brings a new keeper the plans
  const DaemonPlan next = PlanDaemon(request, target);
  if (known->process.env == next.process.env && known->process.unset_env == next.process.unset_env) return {};
  const UniqueFd process(daemon > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, daemon, 0)) : -1);
  {
    MutexLock lock(mutex_);
    plans_.insert_or_assign(name, next);
    retries_.erase(name);
  }
  MR_TRY(mount::StoreDaemonPlan(options_.keeper, name, next.Encode()));
  options_.log.Info("the keys of a volume have changed; its mount goes on with the new ones",
                    {{"volume", request.volume}, {"target", target.path}});
  if (process) ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
  return {};
}

/// Returns true if the daemon of a mount at the keeper died, and the next one does not get as far as to answer.
bool LocalMounter::CannotBeRestarted(const std::string& name) {
  MutexLock lock(mutex_);
  const auto start = starting_.find(name);
  const bool long_since =
      start != starting_.end() && SystemClock().Now() - start->second.began > options_.start_timeout;
  return long_since || retries_.contains(name);
}

/// Ends a mount whose daemon cannot be started again: else its pod could never be removed. What was staged with a
/// record stays for the volume's next mount.
Status LocalMounter::Abandon(const std::string& path, const MountRecord& record) {
  const std::string name = SessionName(path);
  const Retry never{.at = TimePoint::max(), .pause = kFirstRestart};
  std::jthread start;
  {
    MutexLock lock(mutex_);
    retries_.insert_or_assign(name, never);
    if (auto found = starting_.extract(name)) start = std::move(found.mapped().thread);
  }
  start.request_stop();
  if (start.joinable()) start.join();
  {
    MutexLock lock(mutex_);
    retries_.insert_or_assign(name, never);  // that thread may have set another time
  }
  Status ended = mount::ForgetHeldSession(options_.keeper, name);
  if (ended) ended = mount::Detach(path, /*lazy=*/true);
  MutexLock lock(mutex_);
  retries_.erase(name);
  if (!ended) return Fail(ended.error().Context(fmt::format("the mount on {} does not answer", path)));
  plans_.erase(name);
  options_.log.Error("a mount whose daemon cannot be started again is removed; what programs had open is lost",
                     {{"volume", record.volume}, {"target", path}});
  return {};
}

}  // namespace millrace::csi
