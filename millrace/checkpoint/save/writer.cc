#include "millrace/checkpoint/save/writer.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "millrace/base/threads/task_scope.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/save/local_folder.h"
#include "millrace/checkpoint/save/saver.h"

namespace millrace::checkpoint {
namespace {

/// Memory for the file's header, beside Options::snapshot_bytes. A guess: enough for several thousand tensors.
constexpr std::uint64_t kHeaderRoom = 1 * kMiB;

/// Memory for two buffers. Each has a budget of its own, so that neither waits for the other.
struct TwoBudgets {
  explicit TwoBudgets(Reservation both)
      : reserved(std::move(both)), first(reserved.bytes() / 2), second(first.total()) {}
  Reservation reserved;
  MemoryBudget first, second;
};

/// One save under way.
struct PendingSave {
  SaveJob save;
  std::vector<SaveSlice> slices;
  std::vector<CheckpointTier> to;  ///< in this order
  TimePoint started;
};
std::vector<CheckpointTier> TiersOf(const SaveOptions& save) {
  std::vector<CheckpointTier> tiers;
  if (save.to_local) tiers.push_back(CheckpointTier::kLocal);
  if (save.to_store) tiers.push_back(CheckpointTier::kStore);
  return tiers;
}

/// The implementation of Writer, with one or two slots. A slot is a buffer and the thread that saves from it. A tier
/// takes one save at a time, in the order of the calls of Start. So all ranks make a tier's exchanges in the same
/// order, also if their numbers of slots differ.
class TieredWriter final : public Writer {
 public:
  TieredWriter(object::Location root, std::optional<object::Location> local, std::shared_ptr<RankExchange> group,
               MemoryBudget& budget, std::unique_ptr<TwoBudgets> two_budgets, Options options)
      : options_(std::move(options)),
        leader_(group->rank() == 0),
        two_budgets_(std::move(two_budgets)),
        store_(CheckpointTier::kStore, std::move(root), group, options_) {
    if (local) {
      Options of_local = options_;
      of_local.retention = {.keep_last = options_.local->keep};
      of_local.bandwidth = 0;
      of_local.upload_limit = Duration::zero();
      local_.emplace(CheckpointTier::kLocal, *std::move(local), options_.local_group ? options_.local_group : group,
                     of_local, options_.local_peers);
    }
    snapshots_.emplace_back(two_budgets_ ? two_budgets_->first : budget);
    if (two_budgets_) snapshots_.emplace_back(two_budgets_->second);
    const bool warms_up = options_.snapshot_bytes > 0;
    slots_.resize(snapshots_.size(), SaveSlot{.busy = warms_up});
    for (std::size_t slot = 0; slot < snapshots_.size(); ++slot)
      threads_.Spawn("ckpt-save", [this, slot](std::stop_token stop) { WorkLoop(slot, stop); });
  }
  ~TieredWriter() override {
    WaitIdle();
    threads_.RequestStop();
    threads_.Join();
  }

  Result<Duration> Start(std::uint64_t step, const std::vector<SaveSlice>& slices, std::string meta,
                         const SaveOptions& save) override {
    if (save.to_local && !local_) return Fail(Code::kInvalidArgument, "this writer has no local folder to save to");
    if (!save.to_local && !save.to_store) return Fail(Code::kInvalidArgument, "a save needs a tier to save to");
    PendingSave job{.slices = slices, .to = TiersOf(save), .started = Now()};
    job.save.step = step;
    if (leader_) {
      job.save.meta = std::move(meta);
      std::ranges::copy_if(save.metrics, std::inserter(job.save.metrics, job.save.metrics.end()),
                           [](const auto& metric) { return std::isfinite(metric.second); });
    }
    LastResult earlier;
    Duration blocked;
    {
      MutexLock lock(mutex_);
      std::optional<std::size_t> slot;
      while (!(slot = FreeSlotFor(job.to))) changed_.Wait(mutex_);
      blocked = Now() - job.started;
      busy_tiers_.insert(job.to.begin(), job.to.end());
      last_slot_ = *slot;
      slots_[last_slot_] =
          SaveSlot{.busy = true, .copying = true, .blocked = save.held_up + blocked, .job = std::move(job)};
      earlier = std::exchange(last_, std::nullopt);
    }
    changed_.NotifyAll();
    if (earlier && !*earlier) return Fail(earlier->error());
    return blocked;
  }

  Duration WaitCopied() override {
    const TimePoint started = Now();
    MutexLock lock(mutex_);
    Duration waited{0};
    while (std::ranges::any_of(slots_, &SaveSlot::copying)) {
      changed_.Wait(mutex_);
      waited = Now() - started;
    }
    slots_[last_slot_].blocked += waited;
    return waited;
  }

  bool busy(const SaveOptions& next) const override {
    MutexLock lock(mutex_);
    return !FreeSlotFor(TiersOf(next));
  }

  std::optional<Error> lost() const override {
    MutexLock lock(mutex_);
    return lost_;
  }

  Result<std::optional<SaveStats>> Wait() override {
    auto last = WaitIdle();
    if (!last) return std::nullopt;
    if (!*last) return Fail(last->error());
    return **last;
  }

 private:
  using LastResult = std::optional<Result<SaveStats>>;
  /// The state of a buffer and its thread.
  struct SaveSlot {
    bool busy = false;
    bool copying = false;  ///< from Start until the copy is complete; the caller's tensors must not change
    Duration blocked{0};   ///< how long the current save has blocked the caller
    std::optional<PendingSave> job = {};
  };

  TimePoint Now() const { return options_.clock->Now(); }

  /// Returns the slot for a save to `tiers`; nothing while a save to one of them is under way, or all slots are busy.
  /// Saves to the store prefer the first slot and saves to the disk the last one. So a tier's saves mostly use the same
  /// buffer, whose layout rank 0 knows.
  std::optional<std::size_t> FreeSlotFor(const std::vector<CheckpointTier>& tiers) const MR_REQUIRES(mutex_) {
    for (const CheckpointTier tier : tiers)
      if (busy_tiers_.contains(tier)) return std::nullopt;
    const std::size_t last = slots_.size() - 1;
    const bool to_store = std::ranges::find(tiers, CheckpointTier::kStore) != tiers.end();
    for (const std::size_t slot : {to_store ? 0 : last, to_store ? last : 0})
      if (!slots_[slot].busy) return slot;
    return std::nullopt;
  }

  /// Waits for the background threads. Returns the result that no call has returned yet.
  LastResult WaitIdle() {
    MutexLock lock(mutex_);
    while (std::ranges::any_of(slots_, &SaveSlot::busy)) changed_.Wait(mutex_);
    return std::exchange(last_, std::nullopt);
  }

  void WorkLoop(std::size_t slot, std::stop_token stop) {
    Snapshot& snapshot = snapshots_[slot];
    if (options_.snapshot_bytes > 0) {
      // On failure, the first Save reports the error: it needs the same memory.
      if (snapshot.Reserve(options_.snapshot_bytes + kHeaderRoom)) snapshot.Touch();
      FreeSlot(slot);
    }
    while (auto job = NextSave(slot, stop)) {
      job->save.snapshot = Copy(*job, slot);
      for (const CheckpointTier tier : job->to) {
        Result<SaveStats> stats = SaveToTier(*job, slot, tier);
        FinishTier(tier, tier == job->to.back() ? LastResult(std::move(stats)) : std::nullopt);
      }
      FreeSlot(slot);
    }
  }
  std::optional<PendingSave> NextSave(std::size_t slot, std::stop_token stop) {
    MutexLock lock(mutex_);
    changed_.Wait(mutex_, stop, [&]() MR_NO_THREAD_SAFETY_ANALYSIS { return slots_[slot].job.has_value(); });
    return std::exchange(slots_[slot].job, std::nullopt);
  }
  /// Records that a save to a tier has ended. An error stays in last_ until a call returns it.
  void FinishTier(CheckpointTier tier, LastResult stats) {
    MutexLock lock(mutex_);
    busy_tiers_.erase(tier);
    if (stats && (!last_ || *last_)) last_ = std::move(stats);
    changed_.NotifyAll();
  }
  void FreeSlot(std::size_t slot) {
    MutexLock lock(mutex_);
    slots_[slot].busy = false;
    changed_.NotifyAll();
  }

  Status Copy(const PendingSave& job, std::size_t slot) {
    Status taken = job.save.step <= kMaxStep ? snapshots_[slot].Take(job.slices, options_.read_slices)
                                             : Fail(Code::kInvalidArgument, "step {} is too large", job.save.step);
    MutexLock lock(mutex_);
    slots_[slot].copying = false;
    changed_.NotifyAll();
    return taken;
  }

  Result<SaveStats> SaveToTier(const PendingSave& job, std::size_t slot, CheckpointTier tier) {
    Saver& saver = tier == CheckpointTier::kStore ? store_ : *local_;
    const Snapshot& snapshot = snapshots_[slot];
    const Status saved = saver.Save(job.save, snapshot);
    if (saver.lost()) NoteLost(*saver.lost());
    Result<SaveStats> stats =
        SaveStats{job.save.step, snapshot.file().size(), Blocked(slot), Now() - job.started, tier};
    if (!saved) {
      stats =
          Fail(saved.error().Context(fmt::format("saving step {} to {}{}", job.save.step, saver.name(),
                                                 tier == CheckpointTier::kLocal ? DiskFullAdvice(saved.error()) : "")));
      options_.log.Error("checkpoint not saved", {{"step", job.save.step}, {"error", stats.error()}});
    } else {
      options_.log.Info("checkpoint committed",
                        {{"step", job.save.step}, {"bytes", stats->bytes}, {"to", saver.name()}});
    }
    if (options_.on_done) {
      MutexLock one_at_a_time(done_mutex_);
      options_.on_done(stats);
    }
    if (saved) saver.Collect();
    return stats;
  }
  /// Returns advice if the local disk is full; else an empty text.
  std::string DiskFullAdvice(const Error& error) const {
    if (error.code() != Code::kNoSpace) return "";
    return fmt::format(
        " (it needs room for {} checkpoints and one under way: make room, or keep fewer with checkpoint.local.keep; "
        "those of the store are not touched by this)",
        options_.local->keep);
  }
  void NoteLost(const Error& why) {
    MutexLock lock(mutex_);
    lost_ = why;
  }
  Duration Blocked(std::size_t slot) const {
    MutexLock lock(mutex_);
    return slots_[slot].blocked;
  }

  const Options options_;
  const bool leader_;
  const std::unique_ptr<TwoBudgets> two_budgets_;

  Saver store_;  ///< used by the thread that saves to the tier; the same holds for local_
  std::optional<Saver> local_;
  std::deque<Snapshot> snapshots_;  ///< one for each slot

  Mutex done_mutex_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<SaveSlot> slots_ MR_GUARDED_BY(mutex_);
  std::size_t last_slot_ MR_GUARDED_BY(mutex_) = 0;            ///< slot of the last Start
  std::set<CheckpointTier> busy_tiers_ MR_GUARDED_BY(mutex_);  ///< tiers that a save is under way to
  LastResult last_ MR_GUARDED_BY(mutex_);
  std::optional<Error> lost_ MR_GUARDED_BY(mutex_);

  TaskScope threads_;
};

}  // namespace

Result<Duration> Writer::Save(std::uint64_t step, const std::vector<SaveSlice>& slices, std::string meta,
                              const SaveOptions& options) {
  auto started = Start(step, slices, std::move(meta), options);
  const Duration copied = WaitCopied();
  if (!started) return started;
  return *started + copied;
}

Result<std::unique_ptr<Writer>> Writer::Open(object::Connection& connection, std::shared_ptr<RankExchange> group,
                                             MemoryBudget& budget, Options options) {
  if (options.retention.keep_last < 1) {
    return Fail(Code::kInvalidArgument, "keep_last is {}: at least the newest checkpoint is kept",
                options.retention.keep_last);
  }
  if (options.chunk_bytes < 4 * kKiB || options.chunk_bytes > 1 * kGiB)
    return Fail(Code::kInvalidArgument, "chunk_bytes is {}: it must be between 4 KiB and 1 GiB", options.chunk_bytes);
  object::Location root = MR_TRY(object::Locate(connection, options.url));
  std::optional<object::Location> local;
  if (options.local) local = MR_TRY(LocateLocal(*options.local, options.url));
  std::unique_ptr<TwoBudgets> two_budgets;
  if (local && options.local_group && options.snapshot_bytes > 0) {
    auto both = budget.TryAcquire(2 * (options.snapshot_bytes + kHeaderRoom), MemoryBudget::Priority::kForeground);
    if (both) {
      two_budgets = std::make_unique<TwoBudgets>(*std::move(both));
    } else {
      options.log.Info("saves to the disk wait for saves to the store: no memory for two copies", {});
    }
  }
  return std::make_unique<TieredWriter>(std::move(root), std::move(local), std::move(group), budget,
                                        std::move(two_budgets), std::move(options));
}

}  // namespace millrace::checkpoint
