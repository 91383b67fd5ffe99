#include "millrace/csi/mounter/kept_mounts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <set>

#include "millrace/base/hash/random.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/threads/sync.h"

namespace millrace::csi {
namespace {

using testing::HasSubstr;

DaemonPlan PlanOf(const std::string& target, const std::string& key = "key") {
  DaemonPlan plan{.volume = "v", .target = target, .url = "s3://b", .process = {}};
  plan.process.argv = {"millrace"};
  plan.process.env = {{"AWS_ACCESS_KEY_ID", key}};
  plan.process.stdout_file = "/dev/null";
  return plan;
}

/// A node in memory: its keeper, the daemons of its mounts, and the mounts of its kernel. All of them go on when a
/// mounter dies. Thread-safe.
class FakeNode final : public KeeperClient {
 public:
  // What the mounter does.
  Result<std::vector<mount::HeldSessionInfo>> List() override {
    MutexLock lock(mutex_);
    MR_TRY(Answer());
    std::vector<mount::HeldSessionInfo> all;
    for (const auto& [name, held] : held_) {
      all.push_back(
          {.name = name, .held = held.is_held, .has_device = held.has_device, .has_plan = !held.plan.empty()});
    }
    return all;
  }
  Status StorePlan(const std::string& name, const std::string& plan) override {
    MutexLock lock(mutex_);
    MR_TRY(Answer());
    held_[name].plan = plan;
    return {};
  }
  Result<std::string> ReadPlan(const std::string& name) override {
    MutexLock lock(mutex_);
    MR_TRY(Answer());
    const auto found = held_.find(name);
    if (found == held_.end() || found->second.plan.empty()) return Fail(Code::kNotFound, "no plan of {}", name);
    return found->second.plan;
  }
  Status Forget(const std::string& name) override {
    MutexLock lock(mutex_);
    MR_TRY(Answer());
    const auto found = held_.find(name);
    if (found != held_.end() && found->second.is_held) return Fail(Code::kBusy, "held");
    if (found != held_.end()) held_.erase(found);
    EndUnservedMounts();
    return {};
  }
  Status Start(const DaemonPlan& plan) {
    MutexLock lock(mutex_);
    const std::string name = KeptMounts::NameOf(plan.target);
    MR_TRY(Answer());
    if (is_store_away) return Fail(Code::kUnavailable, "the store does not answer");
    if (held_[name].is_held) return Fail(Code::kBusy, "another process serves the mount");
    doubled += static_cast<int>(daemons_.contains(name));
    daemons_[name] = {.key = plan.process.env.at("AWS_ACCESS_KEY_ID"), .plan = held_[name].plan};
    mounts_.insert(name);
    held_[name].is_held = held_[name].has_device = true;
    return {};
  }

  // What happens to the node.
  void KillDaemon(const std::string& target) {
    MutexLock lock(mutex_);
    daemons_.erase(KeptMounts::NameOf(target));
    Notice();
  }
  void KillKeeper() {
    MutexLock lock(mutex_);
    is_keeper_alive = is_keeper_stopped = false;
    held_.clear();
    ended_.clear();
    EndUnservedMounts();
  }
  void StartKeeper() {
    MutexLock lock(mutex_);
    if (std::exchange(is_keeper_alive, true)) return;
    for (const auto& [name, daemon] : daemons_) {
      held_[name] = {.is_held = true, .has_device = true, .plan = daemon.plan};
    }
  }
  void StopKeeper(bool stop) {
    MutexLock lock(mutex_);
    if (is_keeper_alive) is_keeper_stopped = stop;
    Notice();
  }
  void PutStoreAway(bool away) {
    MutexLock lock(mutex_);
    is_store_away = away;
  }
  /// What a daemon does when its mount is removed.
  void EndDaemon(const std::string& target) {
    MutexLock lock(mutex_);
    const std::string name = KeptMounts::NameOf(target);
    daemons_.erase(name);
    mounts_.erase(name);
    if (is_keeper_alive) ended_.insert(name);
    Notice();
  }
  void Detach(const std::string& target) {
    MutexLock lock(mutex_);
    mounts_.erase(KeptMounts::NameOf(target));
  }

  bool IsServed(const std::string& target) {
    MutexLock lock(mutex_);
    return daemons_.contains(KeptMounts::NameOf(target));
  }
  bool IsMounted(const std::string& target) {
    MutexLock lock(mutex_);
    return mounts_.contains(KeptMounts::NameOf(target));
  }
  std::string KeyOf(const std::string& target) {
    MutexLock lock(mutex_);
    return daemons_[KeptMounts::NameOf(target)].key;
  }
  std::set<std::string> Plans() {
    MutexLock lock(mutex_);
    std::set<std::string> names;
    for (const auto& [name, held] : held_) {
      if (!held.plan.empty()) names.insert(name);
    }
    return names;
  }

  std::atomic<int> doubled = 0;  ///< daemons that were started beside another one

 private:
  struct Daemon {
    std::string key, plan;  ///< what it was started with; what it gives the next keeper
  };
  struct HeldName {
    bool is_held = false, has_device = false;
    std::string plan;
  };
  Status Answer() MR_REQUIRES(mutex_) {
    if (!is_keeper_alive) return Fail(Code::kUnavailable, "no keeper listens");
    if (is_keeper_stopped) return Fail(Code::kDeadlineExceeded, "the keeper does not answer");
    return {};
  }
  /// The keeper sees which connections have ended, unless it is stopped.
  void Notice() MR_REQUIRES(mutex_) {
    if (is_keeper_alive && !is_keeper_stopped) {
      for (const std::string& name : std::exchange(ended_, {})) {
        if (!daemons_.contains(name)) held_.erase(name);
      }
      for (auto& [name, held] : held_) held.is_held = held.is_held && daemons_.contains(name);
    }
    EndUnservedMounts();
  }
  void EndUnservedMounts() MR_REQUIRES(mutex_) {
    std::erase_if(mounts_, [&](const std::string& name) MR_REQUIRES(mutex_) {
      const auto held = held_.find(name);
      return !daemons_.contains(name) && (held == held_.end() || !held->second.has_device);
    });
  }

  Mutex mutex_;
  bool is_keeper_alive MR_GUARDED_BY(mutex_) = true;
  bool is_keeper_stopped MR_GUARDED_BY(mutex_) = false;
  bool is_store_away MR_GUARDED_BY(mutex_) = false;
  std::map<std::string, HeldName> held_ MR_GUARDED_BY(mutex_);   ///< at the keeper
  std::map<std::string, Daemon> daemons_ MR_GUARDED_BY(mutex_);  ///< those that run
  std::set<std::string> mounts_ MR_GUARDED_BY(mutex_);           ///< that programs can wait for
  std::set<std::string> ended_ MR_GUARDED_BY(mutex_);  ///< daemons that told the keeper that their mounts are over
};

/// A mounter of the node, which can be restarted.
class KeptMountsTest : public testing::Test {
 protected:
  void SetUp() override { RestartMounter(); }

  void RestartMounter() {
    mounts_.reset();
    mounts_ = std::make_unique<KeptMounts>(KeptMountsOptions{
        .keeper = node_.get(),
        .start_timeout = std::chrono::seconds(60),
        .start = [this](const DaemonPlan& plan, Duration, const std::stop_token&) { return node_->Start(plan); },
        .kill = [this](const std::string& target) { node_->KillDaemon(target); },
        .detach =
            [this](const std::string& target) {
              node_->Detach(target);
              return Status();
            },
        .metrics = &metrics_,
        .clock = &clock_});
    Watch();
  }
  void Watch() {
    (void)mounts_->Watch();
    mounts_->AwaitStarts();
  }
  /// The node is well, and time passes.
  void Heal() {
    node_->StopKeeper(false);
    node_->StartKeeper();
    node_->PutStoreAway(false);
    for (int i = 0; i < 8; ++i) {
      clock_.Advance(std::chrono::seconds(31));
      Watch();
    }
  }
  /// As LocalMounter::Unmount. Returns whether the mount is gone.
  bool Unmount(const std::string& target) {
    if (node_->IsMounted(target) && !node_->IsServed(target)) {
      if (!mounts_->CannotBeRestarted(target) || !mounts_->Abandon(target, "v")) return false;
    }
    node_->EndDaemon(target);
    mounts_->ForgetMount(target);
    return true;
  }

  FakeClock clock_;
  metrics::Registry metrics_;
  std::unique_ptr<FakeNode> node_ = std::make_unique<FakeNode>();
  std::unique_ptr<KeptMounts> mounts_;
};

TEST_F(KeptMountsTest, OnlyAnAnswerForgetsAMount) {
  ASSERT_TRUE(mounts_->StartFirst(PlanOf("/a")));
  // The mounter is restarted while the keeper does not answer, and the daemon dies.
  node_->StopKeeper(true);
  RestartMounter();
  node_->KillDaemon("/a");
  for (int i = 0; i < 5; ++i) Watch();
  EXPECT_TRUE(node_->IsMounted("/a"));
  node_->StopKeeper(false);
  Watch();
  Watch();
  EXPECT_TRUE(node_->IsServed("/a"));
}

TEST_F(KeptMountsTest, AMounterThatWasRestartedGivesTheNextKeeperItsPlans) {
  ASSERT_TRUE(mounts_->StartFirst(PlanOf("/a")));
  RestartMounter();
  node_->KillKeeper();
  node_->StartKeeper();
  Watch();
  EXPECT_EQ(node_->Plans().size(), 1);
  node_->KillDaemon("/a");
  Watch();
  EXPECT_TRUE(node_->IsServed("/a"));
}

TEST_F(KeptMountsTest, SaysThatKeysAreNotRenewed) {
  ASSERT_TRUE(mounts_->StartFirst(PlanOf("/a", "old")));
  auto daemon = Subprocess::Start({.argv = {"sleep", "600"}});
  ASSERT_TRUE(daemon);
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, daemon->pid(), 0)));
  EXPECT_TRUE(mounts_->RenewKeys(PlanOf("/a", "old"), process)) << "nothing has changed";
  node_->StopKeeper(true);
  const Status refused = mounts_->RenewKeys(PlanOf("/a", "new"), process);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(refused.error().ToString(), HasSubstr("goes on with its old keys"));
  EXPECT_THAT(metrics_.PrometheusText(), HasSubstr("millrace_csi_key_renewals_total{result=\"failed\"} 1"));
  EXPECT_FALSE(daemon->Poll());
  node_->StopKeeper(false);
  EXPECT_FALSE(mounts_->RenewKeys(PlanOf("/a", "new"), {})) << "nobody ends a process that does not answer";
  ASSERT_TRUE(mounts_->RenewKeys(PlanOf("/a", "new"), process)) << "kubelet asks again";
  EXPECT_EQ(daemon->Wait()->signal, SIGKILL);
  node_->KillDaemon("/a");
  Watch();
  EXPECT_EQ(node_->KeyOf("/a"), "new");
  EXPECT_THAT(metrics_.PrometheusText(), HasSubstr("millrace_csi_key_renewals_total{result=\"ok\"} 1"));
}

TEST_F(KeptMountsTest, AStartWithOldKeysDoesNotStay) {
  ASSERT_TRUE(mounts_->StartFirst(PlanOf("/a", "old")));
  // The keys change while the next daemon is being started with the old ones.
  bool changed = false;
  mounts_ = std::make_unique<KeptMounts>(
      KeptMountsOptions{.keeper = node_.get(),
                        .start_timeout = std::chrono::seconds(60),
                        .start =
                            [&](const DaemonPlan& plan, Duration, const std::stop_token&) {
                              if (!std::exchange(changed, true)) {
                                EXPECT_TRUE(mounts_->RenewKeys(PlanOf("/a", "new"), {}));
                              }
                              return node_->Start(plan);
                            },
                        .kill = [this](const std::string& target) { node_->KillDaemon(target); },
                        .detach = nullptr,
                        .clock = &clock_});
  node_->KillDaemon("/a");
  for (int i = 0; i < 4; ++i) Watch();
  EXPECT_EQ(node_->KeyOf("/a"), "new");
  mounts_.reset();  // before `changed`
}

TEST_F(KeptMountsTest, TheKeeperForgetsPlansOfMountsThatNeverWere) {
  node_->PutStoreAway(true);
  EXPECT_FALSE(mounts_->StartFirst(PlanOf("/a")));
  EXPECT_TRUE(node_->Plans().empty());
  // A mounter that died between the plan and the daemon. The next one gives that daemon time to come.
  ASSERT_TRUE(node_->StorePlan(KeptMounts::NameOf("/b"), PlanOf("/b").Encode()));
  RestartMounter();
  EXPECT_EQ(node_->Plans().size(), 1);
  Heal();
  EXPECT_TRUE(node_->Plans().empty());
}

/// Random sequences of what users and failures do. After each step: no mount has two daemons, and no mount is gone that
/// could go on. In the end, when the node is well again: each mount that is wanted is served, and nothing else is left.
TEST_F(KeptMountsTest, NoSequenceForgetsOrDoublesAMount) {
  constexpr int kSequences = 300, kSteps = 60;
  int mounted_steps = 0, kills = 0;
  for (std::uint64_t seed = 1; seed <= kSequences; ++seed) {
    Random random(seed);
    node_ = std::make_unique<FakeNode>();
    RestartMounter();
    std::map<std::string, std::string> wanted;  // target -> what happened last, for messages
    for (int step = 0; step < kSteps; ++step) {
      const std::string target = "/" + std::to_string(random.Below(4));
      std::set<std::string> alive;  // mounts that this step must not end
      for (const auto& [each, how] : wanted) {
        if (node_->IsMounted(each)) alive.insert(each);
      }
      const std::uint64_t what = random.Below(14);
      if (what <= 3 && !node_->IsMounted(target)) {
        wanted.erase(target);
        mounts_->ForgetMount(target);
        if (mounts_->StartFirst(PlanOf(target))) wanted[target] = "mounted";
      } else if (what == 4 && wanted.contains(target) && Unmount(target)) {
        wanted.erase(target);
        alive.erase(target);
      } else if (what == 5 || what == 6) {
        ++kills;
        node_->KillDaemon(target);
        if (!node_->IsMounted(target)) alive.erase(target);  // the keeper did not have it
      } else if (what == 7) {
        node_->KillKeeper();
        std::erase_if(alive, [&](const std::string& each) { return !node_->IsMounted(each); });
      } else if (what == 8) {
        node_->StartKeeper();
      } else if (what == 9) {
        node_->StopKeeper(true);
      } else if (what == 10) {
        node_->StopKeeper(false);
      } else if (what == 11) {
        RestartMounter();
      } else if (what == 12) {
        node_->PutStoreAway(random.Below(2) == 0);
      } else {
        clock_.Advance(std::chrono::seconds(random.Below(40)));
      }
      if (random.Below(3) != 0) Watch();
      ASSERT_EQ(node_->doubled, 0) << "seed " << seed << " step " << step << " event " << what;
      for (const std::string& each : alive) {
        ++mounted_steps;
        ASSERT_TRUE(node_->IsMounted(each)) << each << " seed " << seed << " step " << step << " event " << what;
      }
    }
    Heal();
    std::set<std::string> names;
    for (const auto& [target, how] : wanted) {
      if (!node_->IsMounted(target)) continue;  // its daemon and the keeper died together
      EXPECT_TRUE(node_->IsServed(target)) << target << " seed " << seed;
      names.insert(KeptMounts::NameOf(target));
    }
    ASSERT_EQ(node_->Plans(), names) << "seed " << seed;
    ASSERT_EQ(node_->doubled, 0) << "seed " << seed;
  }
  EXPECT_GT(mounted_steps, 5000);
  EXPECT_GT(kills, 1000);
}

}  // namespace
}  // namespace millrace::csi
