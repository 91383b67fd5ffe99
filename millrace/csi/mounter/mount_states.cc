#include "millrace/csi/mounter/mount_states.h"

#include <algorithm>

namespace millrace::csi {
namespace {

/// The pause after the first failed start; doubled after each further one.
constexpr Duration kFirstPause = std::chrono::milliseconds(200), kLastPause = std::chrono::seconds(30);
/// As many starts in each round as a node's processors may well make.
constexpr std::size_t kTogether = 8;
/// The time after which a plan without a process is nobody's. Longer than the first start of a daemon takes, since the
/// mounter before this one may still be starting it.
constexpr Duration kOrphanPatience = std::chrono::minutes(2);

}  // namespace

MountStates::KeptMount* MountStates::Find(const std::string& name) {
  const auto found = mounts_.find(name);
  return found == mounts_.end() ? nullptr : &found->second;
}

const MountStates::KeptMount* MountStates::Find(const std::string& name) const {
  const auto found = mounts_.find(name);
  return found == mounts_.end() ? nullptr : &found->second;
}

std::uint64_t MountStates::Plan(const std::string& name, DaemonPlan plan) {
  mounts_.insert_or_assign(name, KeptMount{.plan = std::move(plan), .start = ++starts_, .changed = ++changes_});
  return starts_;
}

MountWork MountStates::Observe(const std::vector<mount::HeldSessionInfo>& listed, std::uint64_t asked, TimePoint now) {
  MountWork work;
  std::erase_if(removed_, [&](const auto& each) { return each.second <= asked; });
  std::set<std::string> names;
  for (const mount::HeldSessionInfo& info : listed) {
    names.insert(info.name);
    if (removed_.contains(info.name)) continue;
    if (info.has_device) work.kept.insert(info.name);
    KeptMount* known = Find(info.name);
    if (known == nullptr && info.has_device) known = &mounts_[info.name];
    if (known == nullptr) {
      if (!info.held && now - orphans_.try_emplace(info.name, now).first->second >= kOrphanPatience) {
        work.forget.push_back(info.name);
      }
      continue;
    }
    orphans_.erase(info.name);
    KeptMount& mount = *known;
    if (!mount.plan && info.has_plan) work.read.push_back(info.name);
    if (mount.plan && !info.has_plan && (info.held || info.has_device)) {
      work.store.emplace_back(info.name, mount.plan->Encode());
    }
    if (mount.start != 0 || mount.changed > asked) continue;
    if (info.has_device) mount.phase = info.held ? MountPhase::kServing : MountPhase::kLost;
    if (info.held || mount.is_suspended) continue;
    if (!info.has_device) {
      work.forget.push_back(info.name);  // its daemon died on a kernel that keeps no mount
    } else if (!mount.plan && !info.has_plan) {
      work.unknown.push_back(info.name);
    } else if (mount.plan && mount.retry <= now && work.start.size() < kTogether) {
      mount.start = ++starts_;
      mount.began = now;
      work.start.emplace_back(info.name, mount.start);
    }
  }
  std::erase_if(orphans_, [&](const auto& each) { return !names.contains(each.first); });
  // The keeper has lost them, and no daemon will bring them back; or they were gone before their plan was known.
  std::erase_if(mounts_, [&](const auto& each) {
    const auto& [name, mount] = each;
    if (names.contains(name) || mount.start != 0 || mount.changed > asked) return false;
    return !mount.plan || mount.phase == MountPhase::kLost;
  });
  return work;
}

void MountStates::Remove(const std::string& name) {
  mounts_.erase(name);
  removed_[name] = ++changes_;
}

void MountStates::Fill(const std::string& name, DaemonPlan plan) {
  KeptMount* mount = Find(name);
  if (mount != nullptr && !mount->plan) mount->plan = std::move(plan);
}

std::optional<DaemonPlan> MountStates::PlanOf(const std::string& name) const {
  const KeptMount* mount = Find(name);
  return mount == nullptr ? std::nullopt : mount->plan;
}

void MountStates::Replace(const std::string& name, DaemonPlan plan) {
  KeptMount* mount = Find(name);
  if (mount == nullptr) return;
  mount->changed = ++changes_;
  mount->plan = std::move(plan);
  mount->retry = {};
  mount->pause.reset();
}

bool MountStates::Started(const std::string& name, std::uint64_t start) {
  KeptMount* mount = Find(name);
  if (mount == nullptr || mount->start != start) return false;
  mount->start = 0;
  mount->changed = ++changes_;
  mount->phase = MountPhase::kServing;
  mount->retry = {};
  mount->pause.reset();
  return true;
}

Duration MountStates::Failed(const std::string& name, std::uint64_t start, TimePoint now) {
  KeptMount* mount = Find(name);
  if (mount == nullptr || mount->start != start) return {};
  if (mount->phase == MountPhase::kPlanned) {
    Remove(name);
    return {};
  }
  mount->start = 0;
  mount->changed = ++changes_;
  mount->pause = mount->pause ? std::min<Duration>(2 * *mount->pause, kLastPause) : kFirstPause;
  mount->retry = now + *mount->pause;
  return *mount->pause;
}

void MountStates::Suspend(const std::string& name) {
  if (KeptMount* mount = Find(name)) mount->is_suspended = true;
}

void MountStates::Resume(const std::string& name) {
  if (KeptMount* mount = Find(name)) mount->is_suspended = false;
}

bool MountStates::IsStuck(const std::string& name, TimePoint now, Duration patience) const {
  const KeptMount* mount = Find(name);
  if (mount == nullptr || mount->phase != MountPhase::kLost) return false;
  return mount->pause || (mount->start != 0 && now - mount->began > patience);
}

std::set<std::string> MountStates::Names() const {
  std::set<std::string> names;
  for (const auto& [name, mount] : mounts_) {
    if (mount.phase != MountPhase::kPlanned) names.insert(name);
  }
  return names;
}

std::optional<MountPhase> MountStates::PhaseOf(const std::string& name) const {
  const KeptMount* mount = Find(name);
  if (mount == nullptr) return std::nullopt;
  return mount->phase;
}

int MountStates::Count(MountPhase phase) const {
  return static_cast<int>(std::ranges::count_if(mounts_, [&](const auto& each) { return each.second.phase == phase; }));
}

}  // namespace millrace::csi
