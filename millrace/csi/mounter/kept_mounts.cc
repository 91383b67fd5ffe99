#include "millrace/csi/mounter/kept_mounts.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "millrace/base/hash/digest.h"
#include "millrace/base/text.h"

namespace millrace::csi {
namespace {

/// The next daemon of a mount asks its store before it answers. Programs wait for it: giving up helps nobody.
constexpr Duration kRestartTimeout = std::chrono::minutes(10);

bool HasSameKeys(const DaemonPlan& a, const DaemonPlan& b) {
  return a.process.env == b.process.env && a.process.unset_env == b.process.unset_env;
}

}  // namespace

std::string KeptMounts::NameOf(const std::string& target) { return ShortHash(target); }

Result<std::set<std::string>> KeptMounts::Names() const {
  std::set<std::string> names;
  if (!has_keeper()) return names;
  for (const mount::HeldSessionInfo& each : MR_TRY(options_.keeper->List())) names.insert(each.name);
  return names;
}

void KeptMounts::CountStart(bool failed) {
  if (options_.metrics == nullptr) return;
  options_.metrics
      ->AddCounter("millrace_csi_daemon_restarts_total", "Starts of daemons that take the place of one that died",
                   {{"result", failed ? "failed" : "ok"}})
      .Add();
}

void KeptMounts::ShowPhases() {
  if (options_.metrics == nullptr) return;
  for (const auto& [phase, name] :
       {std::pair(MountPhase::kPlanned, "planned"), {MountPhase::kServing, "serving"}, {MountPhase::kLost, "lost"}}) {
    options_.metrics->AddGauge("millrace_csi_mounts", "Mounts that outlive their daemons, by state", {{"state", name}})
        .Set(states_.Count(phase));
  }
  options_.metrics->AddGauge("millrace_csi_keeper_answers", "Whether the keeper answered when it was last asked")
      .Set(is_silent_ ? 0 : 1);
}

Status KeptMounts::StartFirst(const DaemonPlan& plan) {
  if (!has_keeper()) return options_.start(plan, options_.start_timeout, {});
  const std::string name = NameOf(plan.target);
  std::uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = states_.Plan(name, plan);
  }
  Status started = options_.keeper->StorePlan(name, plan.Encode());
  if (started) started = options_.start(plan, options_.start_timeout, {});
  if (!started) (void)options_.keeper->Forget(name);  // else Watch() does
  MutexLock lock(mutex_);
  if (started) {
    states_.Started(name, number);
  } else {
    states_.Failed(name, number, options_.clock->Now());
  }
  return started;
}

/// Asks for the keeper's names. Logs when the keeper stops to answer, and when it answers again.
Result<std::vector<mount::HeldSessionInfo>> KeptMounts::Ask() {
  auto listed = options_.keeper->List();
  MutexLock lock(mutex_);
  const bool was_silent = std::exchange(is_silent_, !listed);
  if (!listed && !was_silent) {
    options_.log.Error("the keeper does not answer: mounts go on, but their daemons are not started again",
                       {{"reason", listed.error()}});
  }
  if (listed && was_silent) options_.log.Info("the keeper answers again", {{"mounts", listed->size()}});
  return listed;
}

std::set<std::string> KeptMounts::Watch() {
  if (!has_keeper()) return {};
  std::uint64_t asked = 0;
  {
    MutexLock lock(mutex_);
    asked = states_.Now();
    std::erase_if(running_, [](const auto& each) { return each.second.ended->load(); });
  }
  const auto listed = Ask();
  MountWork work;
  {
    MutexLock lock(mutex_);
    if (listed) {
      work = states_.Observe(*listed, asked, options_.clock->Now());
    } else {
      work.kept = states_.Names();
    }
    ShowPhases();
  }
  for (const std::string& name : work.read) {
    const auto text = options_.keeper->ReadPlan(name);
    auto plan = text ? DaemonPlan::Decode(*text) : Fail(text.error());
    MutexLock lock(mutex_);
    if (plan) {
      unreadable_.erase(name);
      states_.Fill(name, *std::move(plan));
    } else if (unreadable_.insert(name).second) {
      options_.log.Error("the plan of a mount cannot be read from the keeper; its daemon is not started again",
                         {{"mount", name}, {"reason", plan.error()}});
    }
  }
  for (const auto& [name, plan] : work.store) (void)options_.keeper->StorePlan(name, plan);  // else the next round does
  for (const std::string& name : work.forget) (void)options_.keeper->Forget(name);
  for (const std::string& name : work.unknown) {
    if (!options_.keeper->Forget(name)) continue;
    options_.log.Error("the daemon of a mount died, and nobody knows its plan any more; its pods get errors",
                       {{"mount", name}});
    MutexLock lock(mutex_);
    states_.Remove(name);
  }
  for (const auto& [name, number] : work.start) Run(name, number);
  return work.kept;
}

/// Starts a daemon again on a thread of its own: one whose store does not answer holds up no other.
void KeptMounts::Run(const std::string& name, std::uint64_t number) {
  auto ended = std::make_shared<std::atomic<bool>>(false);
  std::jthread thread([this, name, number, ended](const std::stop_token& stop) {
    Restart(name, number, stop);
    *ended = true;
  });
  RunningStart before;  // of a mount that was at this target: is joined without the lock
  MutexLock lock(mutex_);
  before = std::exchange(running_[name], RunningStart{.ended = ended, .thread = std::move(thread)});
}

/// Starts the daemon of a mount that the keeper has. Needs no hold of the target: a daemon whose mount is being removed
/// ends, and only one daemon can hold a name at the keeper.
void KeptMounts::Restart(const std::string& name, std::uint64_t number, const std::stop_token& stop) {
  std::optional<DaemonPlan> plan;
  {
    MutexLock lock(mutex_);
    plan = states_.PlanOf(name);
  }
  if (!plan) return;  // it was unmounted meanwhile
  const Status started = options_.start(*plan, kRestartTimeout, stop);
  CountStart(!started);
  MutexLock lock(mutex_);
  if (started) {
    const bool is_wanted = states_.Started(name, number);
    const auto wanted = states_.PlanOf(name);
    if (is_wanted && wanted && !HasSameKeys(*wanted, *plan)) options_.kill(plan->target);  // its keys changed meanwhile
    options_.log.Warning("the daemon of a mount died; another one goes on with the mount",
                         {{"volume", plan->volume}, {"target", plan->target}});
    return;
  }
  const Duration pause = states_.Failed(name, number, options_.clock->Now());
  if (stop.stop_requested()) return;
  options_.log.Error("the daemon of a mount died, and cannot be started again yet; its pods wait",
                     {{"volume", plan->volume},
                      {"target", plan->target},
                      {"again_in", FormatDuration(pause)},
                      {"reason", started.error()}});
}

Status KeptMounts::RenewKeys(const DaemonPlan& next, const UniqueFd& daemon) {
  if (!has_keeper()) return {};
  const std::string name = NameOf(next.target);
  {
    MutexLock lock(mutex_);
    if (!states_.PhaseOf(name)) return {};  // a kernel that keeps no mount, or an earlier version's mount
    const auto known = states_.PlanOf(name);
    if (known && HasSameKeys(*known, next)) return {};
  }
  Status renewed = ReplaceKeys(next, daemon);
  if (options_.metrics != nullptr) {
    options_.metrics
        ->AddCounter("millrace_csi_key_renewals_total", "Mounts that were to go on with the keys of a changed Secret",
                     {{"result", renewed ? "ok" : "failed"}})
        .Add();
  }
  if (renewed) return {};
  options_.log.Error("the keys of a volume have changed, and its mount goes on with the old ones",
                     {{"volume", next.volume}, {"target", next.target}, {"reason", renewed.error()}});
  return Fail(renewed.error().Context("the mount goes on with its old keys"));
}

Status KeptMounts::ReplaceKeys(const DaemonPlan& next, const UniqueFd& daemon) {
  const std::string name = NameOf(next.target);
  std::optional<DaemonPlan> before;
  {
    MutexLock lock(mutex_);
    before = states_.PlanOf(name);
    if (!daemon && states_.PhaseOf(name) == MountPhase::kServing) {
      return Fail(Code::kUnavailable, "the mount's process does not answer, or is of another PID namespace");
    }
  }
  if (!before) {  // this mounter was just restarted
    before = MR_TRY(DaemonPlan::Decode(MR_TRY(options_.keeper->ReadPlan(name))));
    if (HasSameKeys(*before, next)) return {};
  }
  MR_TRY(options_.keeper->StorePlan(name, next.Encode()));
  // The table has the new plan before the process ends: the next one is started by it.
  MutexLock lock(mutex_);
  states_.Replace(name, next);
  if (daemon && ::syscall(SYS_pidfd_send_signal, daemon.get(), SIGKILL, nullptr, 0) != 0 && errno != ESRCH) {
    const int failed = errno;
    states_.Replace(name, *std::move(before));  // so that the same call tries again
    return Fail(ErrnoError(failed, "cannot end the mount's process"));
  }
  options_.log.Info("the keys of a volume have changed; its mount goes on with the new ones",
                    {{"volume", next.volume}, {"target", next.target}});
  return {};
}

bool KeptMounts::CannotBeRestarted(const std::string& target) {
  MutexLock lock(mutex_);
  return states_.IsStuck(NameOf(target), options_.clock->Now(), options_.start_timeout);
}

Status KeptMounts::Abandon(const std::string& target, const std::string& volume) {
  const std::string name = NameOf(target);
  RunningStart start;
  {
    MutexLock lock(mutex_);
    states_.Suspend(name);
    if (auto found = running_.extract(name)) start = std::move(found.mapped());
  }
  start.thread.request_stop();
  if (start.thread.joinable()) start.thread.join();
  Status ended = options_.keeper->Forget(name);
  if (ended) ended = options_.detach(target);
  MutexLock lock(mutex_);
  if (!ended) {
    states_.Resume(name);
    return Fail(ended.error().Context(fmt::format("the mount on {} does not answer", target)));
  }
  states_.Remove(name);
  options_.log.Error("a mount whose daemon cannot be started again is removed; what programs had open is lost",
                     {{"volume", volume}, {"target", target}});
  return {};
}

void KeptMounts::ForgetMount(const std::string& target) {
  if (!has_keeper()) return;
  const std::string name = NameOf(target);
  bool is_known = false;
  {
    MutexLock lock(mutex_);
    is_known = states_.PhaseOf(name).has_value();
    states_.Remove(name);
  }
  if (!is_known) return;
  // A daemon that ended in order has told the keeper; one that was killed meanwhile has not. A keeper that does not
  // answer gives the next daemon a mount that is gone, and that daemon ends.
  (void)options_.keeper->Forget(name);
}

void KeptMounts::AwaitStarts() {
  std::map<std::string, RunningStart> running;
  {
    MutexLock lock(mutex_);
    running.swap(running_);
  }
  for (auto& [name, start] : running) {
    if (start.thread.joinable()) start.thread.join();
  }
}

void KeptMounts::Stop() {
  std::map<std::string, RunningStart> running;
  {
    MutexLock lock(mutex_);
    running.swap(running_);
  }
  for (auto& [name, start] : running) start.thread.request_stop();
}

}  // namespace millrace::csi
