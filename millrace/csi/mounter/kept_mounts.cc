#include "millrace/csi/mounter/kept_mounts.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/text.h"
#include "millrace/mount/daemon/session_lease.h"
#include "millrace/mount/point/mount_point.h"

namespace millrace::csi {
namespace {

constexpr Duration kFirstRestart = std::chrono::milliseconds(200), kLastRestart = std::chrono::seconds(30);
/// The next daemon of a mount asks its store before it answers. Programs wait for it: giving up helps nobody.
constexpr Duration kRestartTimeout = std::chrono::minutes(10);

}  // namespace

std::string KeptMounts::NameOf(const std::string& target) { return ShortHash(target); }

Result<std::set<std::string>> KeptMounts::Names() const {
  std::set<std::string> names;
  if (!has_keeper()) return names;
  for (const mount::HeldSessionInfo& each : MR_TRY(mount::ListHeldSessions(keeper_))) names.insert(each.name);
  return names;
}

std::set<std::string> KeptMounts::RemoveUnstarted() const {
  std::set<std::string> kept;
  if (!has_keeper()) return kept;
  for (const mount::HeldSessionInfo& each :
       mount::ListHeldSessions(keeper_).value_or(std::vector<mount::HeldSessionInfo>{})) {
    if (!each.held && !each.has_device) (void)mount::ForgetHeldSession(keeper_, each.name);
    if (each.has_device) kept.insert(each.name);
  }
  return kept;
}

Status KeptMounts::StartFirst(const DaemonPlan& plan) {
  if (!has_keeper()) return start_(plan, start_timeout_, {});
  const std::string name = NameOf(plan.target);
  MR_TRY(mount::StoreDaemonPlan(keeper_, name, plan.Encode()));
  {
    MutexLock lock(mutex_);
    plans_.insert_or_assign(name, plan);
  }
  Status started = start_(plan, start_timeout_, {});
  if (started) return started;
  (void)mount::ForgetHeldSession(keeper_, name);
  MutexLock lock(mutex_);
  plans_.erase(name);
  return started;
}

std::set<std::string> KeptMounts::Watch() {
  if (!has_keeper()) return {};
  const auto kept = mount::ListHeldSessions(keeper_);
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
  for (const auto& [name, plan] : unknown) (void)mount::StoreDaemonPlan(keeper_, name, plan);
  BeginRestarts(left);
  return names;
}

/// Starts daemons of mounts, unless that is under way or must wait. A daemon whose store does not answer holds up no
/// other.
void KeptMounts::BeginRestarts(const std::vector<std::string>& names) {
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
void KeptMounts::Restart(const std::string& name, const std::stop_token& stop) {
  auto text = mount::ReadDaemonPlan(keeper_, name);
  auto plan = text ? DaemonPlan::Decode(*text) : Fail(text.error());
  if (!plan) {
    MutexLock lock(mutex_);
    if (const auto known = plans_.find(name); known != plans_.end()) plan = known->second;
  }
  if (!plan) {
    log_.Error("the daemon of a mount died, and nobody knows its plan any more; its pods get errors",
               {{"mount", name}, {"reason", plan.error()}});
    return void(mount::ForgetHeldSession(keeper_, name));
  }
  const Status started = start_(*plan, kRestartTimeout, stop);
  if (!started && stop.stop_requested()) return;
  MutexLock lock(mutex_);
  if (started) {
    retries_.erase(name);
    log_.Warning("the daemon of a mount died; another one goes on with the mount",
                 {{"volume", plan->volume}, {"target", plan->target}});
    plans_.insert_or_assign(name, *std::move(plan));
    return;
  }
  Retry& retry = retries_.try_emplace(name, Retry{{}, kFirstRestart}).first->second;
  log_.Error("the daemon of a mount died, and cannot be started again yet; its pods wait",
             {{"volume", plan->volume},
              {"target", plan->target},
              {"again_in", FormatDuration(retry.pause)},
              {"reason", started.error()}});
  retry.at = SystemClock().Now() + retry.pause;
  retry.pause = std::min<Duration>(2 * retry.pause, kLastRestart);
}

Status KeptMounts::RenewKeys(const DaemonPlan& next, pid_t daemon) {
  if (!has_keeper()) return {};
  const std::string name = NameOf(next.target);
  const auto listed = mount::ListHeldSessions(keeper_);
  if (!listed) return {};  // kubelet asks again
  const auto kept = std::ranges::find(*listed, name, &mount::HeldSessionInfo::name);
  if (kept == listed->end() || !kept->has_device) return {};
  const auto text = mount::ReadDaemonPlan(keeper_, name);
  const auto known = text ? DaemonPlan::Decode(*text) : Fail(text.error());
  if (!known) return {};  // the watcher brings a new keeper the plans
  if (known->process.env == next.process.env && known->process.unset_env == next.process.unset_env) return {};
  const UniqueFd process(daemon > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, daemon, 0)) : -1);
  {
    MutexLock lock(mutex_);
    plans_.insert_or_assign(name, next);
    retries_.erase(name);
  }
  MR_TRY(mount::StoreDaemonPlan(keeper_, name, next.Encode()));
  log_.Info("the keys of a volume have changed; its mount goes on with the new ones",
            {{"volume", next.volume}, {"target", next.target}});
  if (process) ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
  return {};
}

bool KeptMounts::CannotBeRestarted(const std::string& target) {
  const std::string name = NameOf(target);
  MutexLock lock(mutex_);
  const auto start = starting_.find(name);
  const bool long_since = start != starting_.end() && SystemClock().Now() - start->second.began > start_timeout_;
  return long_since || retries_.contains(name);
}

Status KeptMounts::Abandon(const std::string& target, const std::string& volume) {
  const std::string name = NameOf(target);
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
  Status ended = mount::ForgetHeldSession(keeper_, name);
  if (ended) ended = mount::Detach(target, /*lazy=*/true);
  MutexLock lock(mutex_);
  retries_.erase(name);
  if (!ended) return Fail(ended.error().Context(fmt::format("the mount on {} does not answer", target)));
  plans_.erase(name);
  log_.Error("a mount whose daemon cannot be started again is removed; what programs had open is lost",
             {{"volume", volume}, {"target", target}});
  return {};
}

void KeptMounts::ForgetMount(const std::string& target) {
  MutexLock lock(mutex_);
  plans_.erase(NameOf(target));
  retries_.erase(NameOf(target));
}

void KeptMounts::Stop() {
  std::map<std::string, Starting> starting;
  {
    MutexLock lock(mutex_);
    starting.swap(starting_);
  }
  for (auto& [name, start] : starting) start.thread.request_stop();
}

}  // namespace millrace::csi
