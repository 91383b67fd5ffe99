#include "millrace/checkpoint/save/writer.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "millrace/base/threads/task_scope.h"
#include "millrace/checkpoint/format/layout.h"
#include "millrace/checkpoint/save/saver.h"
#include "millrace/checkpoint/tier/local_folder.h"

namespace millrace::checkpoint {
namespace {

/// For the header of a file with some thousand tensors, beside Options::snapshot_bytes.
constexpr std::uint64_t kHeaderRoom = 1 * kMiB;

/// Memory for two buffers, each with a budget of its own, so that neither ever waits for the other.
struct RoomForTwo {
  explicit RoomForTwo(Reservation both)
      : reserved(std::move(both)), first(reserved.bytes() / 2), second(first.total()) {}
  Reservation reserved;
  MemoryBudget first, second;
};

/// One save under way.
struct Job {
  SaveJob save;
  std::vector<SavePiece> pieces;
  std::vector<Tier> to;  ///< in this order
  TimePoint started;
};
std::vector<Tier> PlacesOf(const SaveOptions& save) {
  std::vector<Tier> places;
  if (save.to_local) places.push_back(Tier::kLocal);
  if (save.to_store) places.push_back(Tier::kStore);
  return places;
}

/// Has one or two hands: a hand is a buffer and the thread that saves from it. A place takes one save at a time, in the
/// order in which they were started; so every rank goes through a place's exchanges alike, whatever hands it has.
class TieredWriter final : public Writer {
 public:
  TieredWriter(object::Location root, std::optional<object::Location> local, std::shared_ptr<Group> group,
               MemoryBudget& budget, std::unique_ptr<RoomForTwo> room, Options options)
      : options_(std::move(options)),
        leader_(group->rank() == 0),
        room_(std::move(room)),
        store_(std::move(root), group, options_) {
    if (local) {
      Options of_local = options_;
      of_local.retention = {.keep_last = options_.local->keep};
      of_local.bandwidth = 0;
      of_local.upload_limit = Duration::zero();
      local_.emplace(*std::move(local), options_.local_group ? options_.local_group : group, of_local,
                     options_.local_peers);
    }
    snapshots_.emplace_back(room_ ? room_->first : budget);
    if (room_) snapshots_.emplace_back(room_->second);
    const bool warms_up = options_.snapshot_bytes > 0;
    hands_.resize(snapshots_.size(), Hand{.busy = warms_up});
    for (std::size_t hand = 0; hand < snapshots_.size(); ++hand)
      threads_.Spawn("ckpt-save", [this, hand](std::stop_token stop) { Work(hand, stop); });
  }
  ~TieredWriter() override {
    WaitIdle();
    threads_.RequestStop();
    threads_.Join();
  }

  Result<Duration> Start(std::uint64_t step, const std::vector<SavePiece>& pieces, const Json& meta,
                         const SaveOptions& save) override {
    if (save.to_local && !local_) return Fail(Code::kInvalidArgument, "this writer has no local folder to save to");
    if (!save.to_local && !save.to_store) return Fail(Code::kInvalidArgument, "a save needs a place to save to");
    Job job{.pieces = pieces, .to = PlacesOf(save), .started = Now()};
    job.save.step = step;
    if (leader_) {
      job.save.meta = meta;
      std::ranges::copy_if(save.metrics, std::inserter(job.save.metrics, job.save.metrics.end()),
                           [](const auto& metric) { return std::isfinite(metric.second); });
    }
    Last earlier;
    Duration blocked;
    {
      MutexLock lock(mutex_);
      std::optional<std::size_t> hand;
      while (!(hand = HandFor(job.to))) changed_.Wait(mutex_);
      blocked = Now() - job.started;
      taken_.insert(job.to.begin(), job.to.end());
      newest_ = *hand;
      hands_[newest_] = Hand{.busy = true, .copying = true, .blocked = blocked, .job = std::move(job)};
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
    while (std::ranges::any_of(hands_, &Hand::copying)) {
      changed_.Wait(mutex_);
      waited = Now() - started;
    }
    hands_[newest_].blocked += waited;
    return waited;
  }

  bool busy(const SaveOptions& next) const override {
    MutexLock lock(mutex_);
    return !HandFor(PlacesOf(next));
  }

  Result<std::optional<SaveStats>> Wait() override {
    auto last = WaitIdle();
    if (!last) return std::nullopt;
    if (!*last) return Fail(last->error());
    return **last;
  }

 private:
  using Last = std::optional<Result<SaveStats>>;
  /// What a hand does.
  struct Hand {
    bool busy = false;
    bool copying = false;  ///< or about to; the caller's tensors are in use
    Duration blocked{0};   ///< the caller, by the save under way
    std::optional<Job> job = {};
  };

  TimePoint Now() const { return options_.clock->Now(); }

  /// The hand for a save to `places`; none while one of them is taken, or all hands are busy. Those for the store find
  /// their buffer as they left it, and those for the disk the other.
  std::optional<std::size_t> HandFor(const std::vector<Tier>& places) const MR_REQUIRES(mutex_) {
    for (const Tier tier : places)
      if (taken_.contains(tier)) return std::nullopt;
    const std::size_t last = hands_.size() - 1;
    const bool to_store = std::ranges::find(places, Tier::kStore) != places.end();
    for (const std::size_t hand : {to_store ? 0 : last, to_store ? last : 0})
      if (!hands_[hand].busy) return hand;
    return std::nullopt;
  }

  /// Waits for the background threads and takes what they have not told yet.
  Last WaitIdle() {
    MutexLock lock(mutex_);
    while (std::ranges::any_of(hands_, &Hand::busy)) changed_.Wait(mutex_);
    return std::exchange(last_, std::nullopt);
  }

  void Work(std::size_t hand, std::stop_token stop) {
    Snapshot& snapshot = snapshots_[hand];
    if (options_.snapshot_bytes > 0) {
      // A failure is told by the first Save, which needs the same memory.
      if (snapshot.Reserve(options_.snapshot_bytes + kHeaderRoom)) snapshot.Touch();
      Idle(hand);
    }
    while (auto job = NextJob(hand, stop)) {
      job->save.snapshot = Copy(*job, hand);
      for (const Tier tier : job->to) {
        Result<SaveStats> stats = Run(*job, hand, tier);
        Leave(tier, tier == job->to.back() ? Last(std::move(stats)) : std::nullopt);
      }
      Idle(hand);
    }
  }
  std::optional<Job> NextJob(std::size_t hand, std::stop_token stop) {
    MutexLock lock(mutex_);
    changed_.Wait(mutex_, stop, [&]() MR_NO_THREAD_SAFETY_ANALYSIS { return hands_[hand].job.has_value(); });
    return std::exchange(hands_[hand].job, std::nullopt);
  }
  /// A save is through with a place. What went wrong stays until it is told.
  void Leave(Tier tier, Last stats) {
    MutexLock lock(mutex_);
    taken_.erase(tier);
    if (stats && (!last_ || *last_)) last_ = std::move(stats);
    changed_.NotifyAll();
  }
  void Idle(std::size_t hand) {
    MutexLock lock(mutex_);
    hands_[hand].busy = false;
    changed_.NotifyAll();
  }

  Status Copy(const Job& job, std::size_t hand) {
    Status taken = job.save.step <= kMaxStep ? snapshots_[hand].Take(job.pieces)
                                             : Fail(Code::kInvalidArgument, "step {} is too large", job.save.step);
    MutexLock lock(mutex_);
    hands_[hand].copying = false;
    changed_.NotifyAll();
    return taken;
  }

  Result<SaveStats> Run(const Job& job, std::size_t hand, Tier tier) {
    Saver& saver = tier == Tier::kStore ? store_ : *local_;
    const Snapshot& snapshot = snapshots_[hand];
    const Status saved = saver.Save(job.save, snapshot);
    Result<SaveStats> stats =
        SaveStats{job.save.step, snapshot.file().size(), Blocked(hand), Now() - job.started, tier};
    if (!saved) {
      stats = Fail(saved.error().Context(fmt::format("saving step {} to {}{}", job.save.step, saver.name(),
                                                     tier == Tier::kLocal ? Cure(saved.error()) : "")));
      options_.log.Error("checkpoint not saved", {{"step", job.save.step}, {"error", stats.error()}});
    } else {
      options_.log.Info("checkpoint committed",
                        {{"step", job.save.step}, {"bytes", stats->bytes}, {"to", saver.name()}});
    }
    if (options_.on_done) {
      MutexLock one_at_a_time(telling_);
      options_.on_done(stats);
    }
    if (saved) saver.Collect();
    return stats;
  }
  /// What to do about a local disk that is full.
  std::string Cure(const Error& error) const {
    if (error.code() != Code::kNoSpace) return "";
    return fmt::format(
        " (it needs room for {} checkpoints and one under way: make room, or keep fewer with checkpoint.local.keep; "
        "those of the store are not touched by this)",
        options_.local->keep);
  }
  Duration Blocked(std::size_t hand) const {
    MutexLock lock(mutex_);
    return hands_[hand].blocked;
  }

  const Options options_;
  const bool leader_;
  const std::unique_ptr<RoomForTwo> room_;

  Saver store_;  ///< of the thread whose save has taken the place; likewise the next
  std::optional<Saver> local_;
  std::deque<Snapshot> snapshots_;  ///< each its hand's

  Mutex telling_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Hand> hands_ MR_GUARDED_BY(mutex_);
  std::size_t newest_ MR_GUARDED_BY(mutex_) = 0;  ///< hand of the last Start
  std::set<Tier> taken_ MR_GUARDED_BY(mutex_);    ///< places that a save is on its way to
  Last last_ MR_GUARDED_BY(mutex_);

  TaskScope threads_;
};

}  // namespace

Result<Duration> Writer::Save(std::uint64_t step, const std::vector<SavePiece>& pieces, const Json& meta,
                              const SaveOptions& options) {
  auto started = Start(step, pieces, meta, options);
  const Duration copied = WaitCopied();
  if (!started) return started;
  return *started + copied;
}

Result<std::unique_ptr<Writer>> Writer::Open(object::Connection& connection, std::shared_ptr<Group> group,
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
  std::unique_ptr<RoomForTwo> room;
  if (local && options.local_group && options.snapshot_bytes > 0) {
    auto both = budget.TryAcquire(2 * (options.snapshot_bytes + kHeaderRoom), MemoryBudget::Priority::kForeground);
    if (both) {
      room = std::make_unique<RoomForTwo>(*std::move(both));
    } else {
      options.log.Info("checkpoints on the disk wait for those to the store: no memory for two copies", {});
    }
  }
  return std::make_unique<TieredWriter>(std::move(root), std::move(local), std::move(group), budget, std::move(room),
                                        std::move(options));
}

}  // namespace millrace::checkpoint
