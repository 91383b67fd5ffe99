// The saving side: the copy, then upload, agreement and commit, on one background thread.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "millrace/base/task_scope.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/local_tier.h"
#include "millrace/checkpoint/saver.h"

namespace millrace::checkpoint {
namespace {

class SingleProcess final : public Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Result<std::vector<std::string>> Gather(std::string mine) override { return std::vector{std::move(mine)}; }
  Result<std::string> Broadcast(std::string from_rank_0) override { return from_rank_0; }
};

/// For the header of a file with some thousand tensors, beside Options::snapshot_bytes.
constexpr std::uint64_t kHeaderRoom = 1 * kMiB;

/// One save under way.
struct Job {
  SaveJob save;
  std::vector<SavePiece> pieces;
  bool to_store = true, to_local = false;
  TimePoint started;
};

class TieredWriter final : public Writer {
 public:
  TieredWriter(object::Location root, std::optional<object::Location> local, std::shared_ptr<Group> group,
               MemoryBudget& budget, Options options)
      : options_(std::move(options)),
        leader_(group->rank() == 0),
        store_(std::move(root), group, options_),
        snapshot_(budget) {
    if (local) {
      Options of_local = options_;
      of_local.retention = {.keep_last = options_.local->keep};
      of_local.bandwidth = 0;
      of_local.upload_limit = Duration::zero();
      local_.emplace(*std::move(local), group, of_local);
    }
    busy_ = options_.snapshot_bytes > 0;
    thread_.Spawn("ckpt-save", [this](std::stop_token stop) { Work(stop); });
  }
  ~TieredWriter() override {
    WaitIdle();
    thread_.RequestStop();
    thread_.Join();
  }

  Result<Duration> Start(std::uint64_t step, const std::vector<SavePiece>& pieces, const Json& meta,
                         const SaveOptions& save) override {
    if (save.to_local && !local_) return Fail(Code::kInvalidArgument, "this writer has no local folder to save to");
    if (!save.to_local && !save.to_store) return Fail(Code::kInvalidArgument, "a save needs a place to save to");
    const TimePoint started = Now();
    auto previous = WaitIdle();
    Job job{.pieces = pieces, .to_store = save.to_store, .to_local = save.to_local, .started = started};
    job.save.step = step;
    if (leader_) {
      job.save.meta = meta;
      std::ranges::copy_if(save.metrics, std::inserter(job.save.metrics, job.save.metrics.end()),
                           [](const auto& metric) { return std::isfinite(metric.second); });
    }
    const Duration blocked = Now() - started;
    {
      MutexLock lock(mutex_);
      job_ = std::move(job);
      busy_ = copying_ = true;
      blocked_ = blocked;
    }
    changed_.NotifyAll();
    if (previous && !*previous) return Fail(previous->error());
    return blocked;
  }

  Duration WaitCopied() override {
    const TimePoint started = Now();
    MutexLock lock(mutex_);
    if (!copying_) return Duration::zero();
    while (copying_) changed_.Wait(mutex_);
    const Duration waited = Now() - started;
    blocked_ += waited;
    return waited;
  }

  bool busy() const override {
    MutexLock lock(mutex_);
    return busy_;
  }

  Result<std::optional<SaveStats>> Wait() override {
    auto last = WaitIdle();
    if (!last) return std::nullopt;
    if (!*last) return Fail(last->error());
    return **last;
  }

 private:
  using Last = std::optional<Result<SaveStats>>;

  TimePoint Now() const { return options_.clock->Now(); }

  /// Waits for the background thread and takes what it has not told yet.
  Last WaitIdle() {
    MutexLock lock(mutex_);
    while (busy_) changed_.Wait(mutex_);
    return std::exchange(last_, std::nullopt);
  }

  void Work(std::stop_token stop) {
    if (options_.snapshot_bytes > 0) {
      // A failure is told by the first Save, which needs the same memory.
      if (snapshot_.Reserve(options_.snapshot_bytes + kHeaderRoom)) snapshot_.Touch();
      Idle();
    }
    while (auto job = NextJob(stop)) {
      job->save.snapshot = Copy(*job);
      if (job->to_local) {
        auto stats = Run(*job, *local_, Tier::kLocal);
        if (!job->to_store) SetLast(std::move(stats));
      }
      if (job->to_store) SetLast(Run(*job, store_, Tier::kStore));
      Idle();
    }
  }
  std::optional<Job> NextJob(std::stop_token stop) {
    MutexLock lock(mutex_);
    changed_.Wait(mutex_, stop, [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return job_.has_value(); });
    return std::exchange(job_, std::nullopt);
  }
  void SetLast(Result<SaveStats> stats) {
    MutexLock lock(mutex_);
    last_ = std::move(stats);
  }
  void Idle() {
    MutexLock lock(mutex_);
    busy_ = false;
    changed_.NotifyAll();
  }

  Status Copy(const Job& job) {
    Status taken = job.save.step <= kMaxStep ? snapshot_.Take(job.pieces)
                                             : Fail(Code::kInvalidArgument, "step {} is too large", job.save.step);
    MutexLock lock(mutex_);
    copying_ = false;
    changed_.NotifyAll();
    return taken;
  }

  Result<SaveStats> Run(const Job& job, Saver& saver, Tier tier) {
    const Status saved = saver.Save(job.save, snapshot_);
    Result<SaveStats> stats = SaveStats{job.save.step, snapshot_.file().size(), Blocked(), Now() - job.started, tier};
    if (!saved) {
      stats = Fail(saved.error().Context(fmt::format("saving step {} to {}", job.save.step, saver.name())));
      options_.log.Error("checkpoint not saved", {{"step", job.save.step}, {"error", stats.error()}});
    } else {
      options_.log.Info("checkpoint committed",
                        {{"step", job.save.step}, {"bytes", stats->bytes}, {"to", saver.name()}});
    }
    if (options_.on_done) options_.on_done(stats);
    if (saved) saver.Collect();
    return stats;
  }
  Duration Blocked() const {
    MutexLock lock(mutex_);
    return blocked_;
  }

  const Options options_;
  const bool leader_;

  // The background thread's.
  Saver store_;
  std::optional<Saver> local_;
  Snapshot snapshot_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool busy_ MR_GUARDED_BY(mutex_) = false;
  bool copying_ MR_GUARDED_BY(mutex_) = false;  ///< or about to; the caller's tensors are in use
  Duration blocked_ MR_GUARDED_BY(mutex_){0};   ///< by the save under way
  std::optional<Job> job_ MR_GUARDED_BY(mutex_);
  Last last_ MR_GUARDED_BY(mutex_);

  TaskScope thread_;
};

}  // namespace

std::unique_ptr<Group> SingleProcessGroup() { return std::make_unique<SingleProcess>(); }

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
  return std::make_unique<TieredWriter>(std::move(root), std::move(local), std::move(group), budget,
                                        std::move(options));
}

}  // namespace millrace::checkpoint
