// The saving side: snapshot on the caller's thread; upload, agreement and commit on one background thread.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "millrace/base/task_scope.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/commit.h"
#include "millrace/checkpoint/layout.h"
#include "millrace/checkpoint/snapshot.h"
#include "millrace/checkpoint/upload.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

class SingleProcess final : public Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Result<std::vector<std::string>> Gather(std::string mine) override { return std::vector{std::move(mine)}; }
  Result<std::string> Broadcast(std::string from_rank_0) override { return from_rank_0; }
};

// Ranks tell each other results as one byte for the code (0: success) and a text.
std::string EncodeResult(const Result<std::string>& result) {
  if (result) return '\0' + *result;
  return static_cast<char>(1 + static_cast<int>(result.error().code())) + result.error().ToString();
}
Result<std::string> DecodeResult(std::string text) {
  if (text.empty()) return Fail(Code::kInternal, "an empty message from another rank");
  int code = static_cast<unsigned char>(text.front());
  text.erase(0, 1);
  if (code == 0) return text;
  if (code > 1 + static_cast<int>(Code::kInternal))
    return Fail(Code::kInternal, "an unknown message from another rank");
  return Fail(Error(static_cast<Code>(code - 1), std::move(text)));
}

/// For the header of a file with some thousand tensors, beside Options::snapshot_bytes.
constexpr std::uint64_t kHeaderRoom = 1 * kMiB;

/// One save under way.
struct Job {
  std::uint64_t step = 0;
  Json meta;
  std::map<std::string, double> metrics;
  Status snapshot;  ///< how this rank's copy went
  TimePoint started;
  Duration blocked{0};
};

std::string EncodeOutcome(const CommitOutcome& outcome) {
  Result<std::string> text = std::string();
  if (!outcome.status) text = Fail(outcome.status.error());
  return (outcome.unknown ? '?' : '!') + EncodeResult(text);
}
CommitOutcome DecodeOutcome(std::string text) {
  bool certain = text.starts_with('!');
  auto result = DecodeResult(text.empty() ? text : text.substr(1));
  return {result ? Status() : Fail(result.error()), !certain};
}

class StoreWriter final : public Writer {
 public:
  StoreWriter(object::Location root, std::shared_ptr<Group> group, MemoryBudget& budget, Options options)
      : store_(std::move(root.store)),
        root_(std::move(root.key)),
        layout_(root_),
        group_(std::move(group)),
        options_(std::move(options)),
        parent_(options_.parent),
        snapshot_(budget) {
    busy_ = options_.snapshot_bytes > 0;
    thread_.Spawn("ckpt-save", [this](std::stop_token stop) { Work(stop); });
  }
  ~StoreWriter() override {
    WaitIdle();
    thread_.RequestStop();
    thread_.Join();
  }

  Result<Duration> Save(std::uint64_t step, const std::vector<SavePiece>& pieces, const Json& meta,
                        const std::map<std::string, double>& metrics) override {
    TimePoint started = Now();
    auto previous = WaitIdle();
    Job job{.step = step, .started = started};
    if (leader()) {
      job.meta = meta;
      std::ranges::copy_if(metrics, std::inserter(job.metrics, job.metrics.end()),
                           [](const auto& metric) { return std::isfinite(metric.second); });
    }
    job.snapshot =
        step <= kMaxStep ? snapshot_.Take(pieces) : Fail(Code::kInvalidArgument, "step {} is too large", step);
    Duration blocked = job.blocked = Now() - started;
    {
      MutexLock lock(mutex_);
      job_ = std::move(job);
      busy_ = true;
    }
    changed_.NotifyAll();
    if (previous && !*previous) return Fail(previous->error());
    return blocked;
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
  bool leader() const { return group_->rank() == 0; }

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
      Idle(std::nullopt);
    }
    while (auto job = NextJob(stop)) {
      auto stats = Run(*job);
      if (options_.on_done) options_.on_done(stats);
      if (stats && leader()) Collect();
      Idle(std::move(stats));
    }
  }
  std::optional<Job> NextJob(std::stop_token stop) {
    MutexLock lock(mutex_);
    changed_.Wait(mutex_, stop, [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return job_.has_value(); });
    return std::exchange(job_, std::nullopt);
  }
  void Idle(Last last) {
    MutexLock lock(mutex_);
    last_ = std::move(last);
    busy_ = false;
    changed_.NotifyAll();
  }

  Result<SaveStats> Run(const Job& job) {
    auto saved = SaveOnAllRanks(job);
    if (!saved) {
      Error error = saved.error().Context(fmt::format("saving step {} to {}/{}", job.step, store_->Describe(), root_));
      options_.log.Error("checkpoint not saved", {{"step", job.step}, {"error", error}});
      return Fail(std::move(error));
    }
    SaveStats stats{job.step, snapshot_.file().size(), job.blocked, Now() - job.started};
    options_.log.Info("checkpoint committed", {{"step", job.step}, {"bytes", stats.bytes}});
    return stats;
  }

  /// The protocol of docs/formats/checkpoint.md, "Saving". Every rank goes through the same three exchanges, whatever
  /// fails in between, so that nobody waits for a rank that has given up.
  Status SaveOnAllRanks(const Job& job) {
    std::string expected;  // the fence that the manifest replaces; rank 0 knows
    Result<std::string> begun = leader() ? Begin(job.step, expected) : std::string();
    std::string attempt = MR_TRY(DecodeResult(MR_TRY(group_->Broadcast(EncodeResult(begun)))));

    const std::string key = layout_.StepFolder(job.step) + RankFile(attempt, group_->rank());
    Result<std::string> part = UploadPart(job, attempt, key);
    auto parts = group_->Gather(EncodeResult(part));
    CommitOutcome outcome;
    if (!leader()) {
      // After a failed exchange rank 0 may have committed all the same: the file stays.
      if (!parts) return Fail(parts.error().Context("reporting to rank 0"));
      auto heard = group_->Broadcast({});
      if (!heard) return Fail(heard.error().Context("hearing from rank 0"));
      outcome = DecodeOutcome(*std::move(heard));
    } else {
      outcome = parts ? Commit(job, attempt, expected, *std::move(parts))
                      : CommitOutcome{Fail(parts.error().Context("hearing from all ranks"))};
      auto told = group_->Broadcast(EncodeOutcome(outcome));
      if (!told) options_.log.Warning("not all ranks know how a checkpoint ended", {{"error", told.error()}});
    }
    if (!outcome.status && !outcome.unknown) RemoveOwnFile(key);
    return outcome.status;
  }

  /// Rank 0: is the step free? Draws the attempt.
  Result<std::string> Begin(std::uint64_t step, std::string& expected) {
    expected = MR_TRY(ExpectedFence(*store_, layout_, step));
    return NewAttempt();
  }

  /// Uploads this rank's file; yields its part of the manifest.
  Result<std::string> UploadPart(const Job& job, std::string_view attempt, const std::string& key) {
    if (!job.snapshot) return Fail(job.snapshot.error());
    Manifest part = snapshot_.part();
    if (const ByteSpan bytes = snapshot_.file(); !bytes.empty()) {
      const std::string file = RankFile(attempt, group_->rank());
      ChunkSums sums(options_.chunk_bytes);  // of each part just before it goes out, while those before it travel
      MR_TRY(UploadBytes(*store_, key, bytes, {options_.part_bytes, options_.parallel_parts},
                         [&](ByteSpan sent) { sums.Add(sent); }));
      for (Slice& slice : part.slices) slice.file = file;
      part.files.emplace(file, sums.Finish());
    }
    return part.Serialize();
  }

  /// Rank 0: puts together what the ranks reported.
  Result<Manifest> Merge(const Job& job, const std::string& attempt, std::vector<std::string> reports) {
    Manifest manifest;
    manifest.step = job.step;
    manifest.ranks = group_->size();
    manifest.attempt = attempt;
    manifest.created = FormatIso8601(options_.clock->Wall());
    manifest.written_by = options_.written_by;
    manifest.parent = parent_;
    manifest.metrics = job.metrics;
    manifest.meta = job.meta;
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
      auto text = DecodeResult(std::move(reports[rank]));
      if (!text) return Fail(text.error().Context(fmt::format("rank {}", rank)));
      Manifest part = MR_TRY(Manifest::ParsePart(*text, fmt::format("report of rank {}", rank)));
      for (auto& [name, meta] : part.tensors) {
        auto [tensor, added] = manifest.tensors.emplace(name, meta);
        if (tensor->second != meta)
          return Fail(Code::kInvalidArgument, "tensor {} has another shape on rank {} than on lower ranks", name, rank);
      }
      std::move(part.slices.begin(), part.slices.end(), std::back_inserter(manifest.slices));
      manifest.files.merge(part.files);
    }
    auto complete = manifest.Check("what the ranks saved");
    if (!complete) return Fail(complete.error().WithCode(Code::kInvalidArgument));
    return manifest;
  }

  /// Rank 0: the commit point.
  CommitOutcome Commit(const Job& job, const std::string& attempt, const std::string& expected,
                       std::vector<std::string> reports) {
    auto manifest = Merge(job, attempt, std::move(reports));
    if (!manifest) return {Fail(manifest.error())};
    CommitOutcome outcome = CommitManifest(*store_, layout_, *manifest, expected);
    if (outcome.status) parent_ = manifest->id();
    return outcome;
  }

  /// Best effort: what stays is garbage, and collected as such.
  void RemoveOwnFile(const std::string& key) {
    auto removed = snapshot_.file().empty() ? Status() : object::Delete(*store_, key);
    if (!removed)
      options_.log.Warning("file of a failed save stays for now", {{"key", key}, {"error", removed.error()}});
  }

  void Collect() {
    auto collected = CollectGarbage({store_, root_}, options_.retention, /*dry_run=*/false);
    if (!collected) {
      options_.log.Warning("old checkpoints not removed; the next save tries again", {{"error", collected.error()}});
    } else if (collected->objects > 0) {
      options_.log.Info("old checkpoints removed",
                        {{"checkpoints", collected->removed_steps.size()}, {"bytes", collected->bytes}});
    }
  }

  const std::shared_ptr<object::Store> store_;
  const std::string root_;
  const Layout layout_;
  const std::shared_ptr<Group> group_;
  const Options options_;

  std::optional<CheckpointId> parent_;  ///< of the next save; the background thread's, on rank 0

  // Belongs to the background thread while busy_, to the caller of Save otherwise.
  Snapshot snapshot_;

  Mutex mutex_;
  CondVar changed_;
  bool busy_ MR_GUARDED_BY(mutex_) = false;
  std::optional<Job> job_ MR_GUARDED_BY(mutex_);
  Last last_ MR_GUARDED_BY(mutex_);

  TaskScope thread_;
};

}  // namespace

std::unique_ptr<Group> SingleProcessGroup() { return std::make_unique<SingleProcess>(); }

Result<std::unique_ptr<Writer>> Writer::Open(object::Connection& connection, std::shared_ptr<Group> group,
                                             MemoryBudget& budget, Options options) {
  if (options.retention.keep_last < 1) {
    return Fail(Code::kInvalidArgument, "keep_last is {}: at least the newest checkpoint is kept",
                options.retention.keep_last);
  }
  if (options.chunk_bytes < 4 * kKiB || options.chunk_bytes > 1 * kGiB)
    return Fail(Code::kInvalidArgument, "chunk_bytes is {}: it must be between 4 KiB and 1 GiB", options.chunk_bytes);
  object::Location root = MR_TRY(object::Locate(connection, options.url));
  return std::make_unique<StoreWriter>(std::move(root), std::move(group), budget, std::move(options));
}

}  // namespace millrace::checkpoint
