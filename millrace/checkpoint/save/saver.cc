#include "millrace/checkpoint/save/saver.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/checkpoint/commit/collect.h"
#include "millrace/checkpoint/format/chunk_sums.h"
#include "millrace/checkpoint/save/result_message.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// Nested values of a caller's metadata. A guess: far more than any configuration has.
constexpr int kMaxMetaDepth = 1024;

/// Counts the parts in flight and collects their results. The uploading thread must call WaitForAll before it destroys
/// this object.
class PartsInFlight {
 public:
  explicit PartsInFlight(std::size_t parts) : parts_(parts) {}

  /// Waits until fewer than `limit` parts are in flight. Returns false once a part has failed.
  bool WaitBelow(int limit) {
    MutexLock lock(mutex_);
    while (in_flight_ >= limit) changed_.Wait(mutex_);
    return !error_;
  }
  void Started() {
    MutexLock lock(mutex_);
    ++in_flight_;
  }
  void Fail(const Error& error) {
    MutexLock lock(mutex_);
    if (!error_) error_ = error;
  }
  void Finished(std::size_t index, Result<object::PartInfo> part) {
    MutexLock lock(mutex_);
    if (part) {
      parts_[index] = *std::move(part);
    } else if (!error_) {
      error_ = part.error().Context(fmt::format("part {}", index + 1));
    }
    --in_flight_;
    changed_.NotifyAll();  // under the lock: after the unlock the uploading thread may destroy this object
  }
  Result<std::vector<object::PartInfo>> WaitForAll() {
    WaitBelow(1);
    MutexLock lock(mutex_);
    if (error_) return millrace::Fail(*error_);
    return parts_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int in_flight_ MR_GUARDED_BY(mutex_) = 0;
  std::optional<Error> error_ MR_GUARDED_BY(mutex_);
  std::vector<object::PartInfo> parts_ MR_GUARDED_BY(mutex_);
};

std::uint64_t PartBytes(const object::Limits& limits, std::uint64_t wanted, std::uint64_t size) {
  std::uint64_t parts = static_cast<std::uint64_t>(limits.max_parts);
  return std::min(std::max({wanted, limits.min_part, size / parts + (size % parts != 0), std::uint64_t{1}}),
                  limits.max_part);
}

/// Puts `bytes` under `key`. Uses one Put if they fit one part of options.part_bytes, or more if the store's limits
/// require it, else a multipart upload with options.parallel_parts parts in flight. Calls `before` with each part in
/// order, just before the part is sent and while earlier parts are in flight. `before` returns the part's CRC-32C, or
/// an error that ends the upload. Blocks until the object exists. If it fails, the upload is aborted, and the object is
/// not visible unless the last request, which publishes it, failed.
Status UploadBytes(object::Store& store, const std::string& key, ByteSpan bytes, const Writer::Options& options,
                   const std::function<Result<std::uint32_t>(ByteSpan)>& before, const object::Call& call) {
  const std::uint64_t part_bytes = PartBytes(store.limits(), options.part_bytes, bytes.size());
  if (bytes.size() <= part_bytes) {
    const std::uint32_t crc32c = MR_TRY(before(bytes));
    MR_TRY(object::Put(store, key, {bytes, crc32c}, {}, call));
    return {};
  }
  const std::string upload_id = MR_TRY(object::CreateMultipart(store, key, {}, call));
  PartsInFlight parts((bytes.size() + part_bytes - 1) / part_bytes);
  for (std::size_t index = 0; index * part_bytes < bytes.size(); ++index) {
    ByteSpan part = bytes.subspan(index * part_bytes, std::min(part_bytes, bytes.size() - index * part_bytes));
    const Result<std::uint32_t> crc32c = before(part);
    if (!crc32c) {
      parts.Fail(crc32c.error());
      break;
    }
    if (!parts.WaitBelow(options.parallel_parts)) break;
    parts.Started();
    store.UploadPart(key, upload_id, static_cast<int>(index) + 1, {part, *crc32c}, call,
                     [&parts, index](Result<object::PartInfo> done) { parts.Finished(index, std::move(done)); });
  }
  auto complete = [&]() -> Status {
    auto uploaded = MR_TRY(parts.WaitForAll());
    MR_TRY(object::CompleteMultipart(store, key, upload_id, std::move(uploaded), {}, call));
    return {};
  };
  if (auto failed = complete(); !failed) {
    // Without the caller's stop token, which may have ended the upload. If the abort fails, the garbage collection
    // aborts the upload.
    std::ignore = object::AbortMultipart(store, key, upload_id, {});
    return failed;
  }
  return {};
}

}  // namespace

void Pacer::Pass(std::uint64_t bytes) {
  if (rate_ == 0) return;
  clock_.SleepUntil(free_at_);
  const double seconds = static_cast<double>(bytes) / static_cast<double>(rate_);
  free_at_ =
      std::max(free_at_, clock_.Now()) + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

Saver::Saver(CheckpointTier tier, object::Location root, std::shared_ptr<RankExchange> group,
             const Writer::Options& options, std::shared_ptr<PeerReplicator> peers)
    : tier_(tier),
      store_(std::move(root.store)),
      root_(std::move(root.key)),
      keys_(root_),
      group_(std::move(group)),
      options_(options),
      peers_(std::move(peers)),
      pacer_(*options.clock, options.bandwidth),
      ownership_(group_->rank() == 0 ? options.ownership : nullptr),
      guard_({store_, root_}, options.run, options.parent ? std::optional(options.parent->step) : std::nullopt,
             tier == CheckpointTier::kStore ? ownership_ : nullptr, options.log),
      parent_(options.parent) {}

std::string Saver::name() const { return fmt::format("{}/{}", store_->Describe(), root_); }

Status Saver::Save(const SaveJob& job, const Snapshot& snapshot) {
  if (lost_) return Fail(*lost_);
  std::string expected;  // the fence that the manifest must replace; on rank 0 only
  const std::string begins = is_leader() ? EncodeBegin(BeginAttempt(job.step, expected)) : "";
  const SaveBegin begin = DecodeBegin(MR_TRY(group_->Broadcast(begins)));
  if (begin.is_lost) lost_ = begin.attempt.error();
  const std::string attempt = MR_TRY(begin.attempt);

  const std::string key = keys_.StepFolder(job.step) + RankFile(attempt, group_->rank());
  const Result<RankReport> report = Upload(job, snapshot, attempt, key);
  auto reports = group_->Gather(EncodeReport(report));
  CommitOutcome outcome;
  if (!is_leader()) {
    // After a failed exchange rank 0 may still have committed, so this rank's file stays.
    if (!reports) return Fail(reports.error().Context("reporting to rank 0"));
    auto heard = group_->Broadcast({});
    if (!heard) return Fail(heard.error().Context("hearing from rank 0"));
    outcome = DecodeOutcome(*std::move(heard));
  } else {
    outcome = reports ? Commit(job, attempt, expected, *std::move(reports))
                      : CommitOutcome{Fail(reports.error().Context("hearing from all ranks"))};
    auto sent = group_->Broadcast(EncodeOutcome(outcome));
    if (!sent) options_.log.Warning("not all ranks know how a checkpoint ended", {{"error", sent.error()}});
  }
  if (outcome.is_lost) lost_ = outcome.status.error();
  if (outcome.status) reported_ = {&snapshot, snapshot.layout_id()};
  if (!outcome.status && !outcome.is_unknown) RemoveOwnFile(snapshot, key);
  return outcome.status;
}

/// Rank 0: checks that no other run saves here, and that the step is free. Returns a new attempt.
SaveBegin Saver::BeginAttempt(std::uint64_t step, std::string& expected) {
  const bool is_owner = ownership_ && tier_ == CheckpointTier::kStore;
  if (const auto lost = LostClaim()) return {.attempt = Fail(*lost), .is_lost = true};
  if (is_owner) {
    // The commit lists the checkpoints. A claim that is lost meanwhile is found there, or by a renewal.
    if (const Status begun = ownership_->EnsureBegun(); !begun) return {Fail(begun.error()), LostClaim().has_value()};
  } else {
    const auto winner = guard_.FindWinner();
    if (!winner) return {.attempt = Fail(winner.error().Context("looking for checkpoints of other runs"))};
    if (*winner) return {.attempt = Fail(**winner), .is_lost = true};
  }
  auto fence = ExpectedFence(*store_, keys_, step);
  if (!fence && is_owner && fence.error().code() == Code::kAlreadyExists) fence = ClearSuperseded(step, fence.error());
  if (!fence) return {Fail(LostClaim().value_or(fence.error())), LostClaim().has_value()};
  expected = *std::move(fence);
  return {.attempt = NewAttempt()};
}

/// Rank 0: returns why this run must not save any more, as far as it is known without a request.
std::optional<Error> Saver::LostClaim() const { return ownership_ ? ownership_->lost() : std::nullopt; }

/// Rank 0: puts a fence in place of a manifest that does not count, and returns the fence's ETag.
/// Errors: `taken` if the manifest counts, unless it belongs to an attempt that has taken over.
Result<std::string> Saver::ClearSuperseded(std::uint64_t step, const Error& taken) {
  const std::string key = keys_.ManifestKey(step);
  const auto content = MR_TRY(object::GetAll(*store_, key, Manifest::kMaxBytes));
  if (!content || !ownership_->Supersedes(EpochOfManifestHead(content->bytes), step)) {
    const auto winner = guard_.FindWinner();
    return winner && *winner ? Fail(**winner) : Fail(taken);
  }
  const auto put = MR_TRY(object::Put(*store_, key, AsBytes(NewFence()), {.if_match = content->info.etag}));
  return put.etag;
}

/// Uploads this rank's file. Returns the report for rank 0.
Result<RankReport> Saver::Upload(const SaveJob& job, const Snapshot& snapshot, std::string_view attempt,
                                 const std::string& key) {
  if (!job.snapshot) return Fail(job.snapshot.error());
  Manifest part;
  if (const ByteSpan bytes = snapshot.file(); !bytes.empty()) {
    object::Call call;
    if (options_.upload_limit > Duration::zero())
      call.deadline = Deadline::After(*options_.clock, options_.upload_limit);
    ChunkSums sums(options_.chunk_bytes);  // computed for each part while earlier parts are in flight
    auto before = [&](ByteSpan next) -> Result<std::uint32_t> {
      const std::uint32_t crc32c = sums.Add(next);
      pacer_.Pass(next.size());
      if (!call.deadline.Passed(*options_.clock)) return crc32c;
      return Fail(Code::kDeadlineExceeded, "the upload of {} bytes takes longer than it may", bytes.size());
    };
    MR_TRY(UploadBytes(*store_, key, bytes, options_, before, call));
    if (peers_) MR_TRY(peers_->CopyToPeers(keys_.Relative(key), bytes, call));
    part.files.emplace(RankFile(attempt, group_->rank()), sums.Finish());
  }
  if (reported_ == ReportedLayout{&snapshot, snapshot.layout_id()})
    return RankReport{RankReport::Contents::kFileOnly, std::move(part)};
  part.tensors = snapshot.part().tensors;
  part.slices = snapshot.part().slices;
  if (!part.files.empty())
    for (Slice& slice : part.slices) slice.file = part.files.begin()->first;
  return RankReport{RankReport::Contents::kFull, std::move(part)};
}

/// Rank 0: merges the reports and commits.
CommitOutcome Saver::Commit(const SaveJob& job, const std::string& attempt, const std::string& expected,
                            std::vector<std::string> reports) {
  auto manifest = Merge(job, attempt, std::move(reports));
  if (!manifest) return {Fail(manifest.error())};
  CommitOutcome outcome = CommitManifest(*store_, keys_, *manifest, expected);
  if (outcome.status) guard_.NoteCommit(job.step);
  if (outcome.status && ownership_ && tier_ == CheckpointTier::kStore) outcome = ConfirmCommit(job.step);
  if (outcome.status) {
    parent_ = manifest->id();
  } else if (outcome.status.error().code() == Code::kAlreadyExists) {
    if (auto winner = guard_.FindWinner(); winner && *winner) outcome = {.status = Fail(**winner), .is_lost = true};
  }
  if (outcome.status && peers_) last_manifest_ = manifest->Serialize();
  return outcome;
}

/// Rank 0: checks that this run was the owner when it committed. If it was not, the manifest may count or not: the next
/// owner has found it or has not. So the files stay, and the save has failed.
CommitOutcome Saver::ConfirmCommit(std::uint64_t step) {
  const auto winner = guard_.FindWinner();
  if (winner && !*winner) return {};
  if (winner) return {.status = Fail(**winner), .is_unknown = true, .is_lost = true};
  return {
      .status = Fail(winner.error().Context(fmt::format("whether the checkpoint of step {} counts is unknown", step))),
      .is_unknown = true};
}

/// Rank 0: merges the ranks' reports into a manifest and checks it.
Result<Manifest> Saver::Merge(const SaveJob& job, const std::string& attempt, std::vector<std::string> reports) {
  Manifest manifest;
  manifest.step = job.step;
  manifest.ranks = group_->size();
  manifest.attempt = attempt;
  manifest.created = FormatIso8601(options_.clock->Wall());
  manifest.written_by = options_.written_by;
  manifest.run = guard_.run();
  if (ownership_) manifest.epoch = ownership_->epoch();
  manifest.parent = parent_;
  manifest.metrics = job.metrics;
  if (!job.meta.empty())
    manifest.meta = MR_TRY(ParseJson(job.meta, "the metadata of the save", {.depth = kMaxMetaDepth}));
  bool changed = false;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    RankReport report = MR_TRY(DecodeReport(std::move(reports[rank]), rank));
    changed = changed || report.contents == RankReport::Contents::kFull;
    MR_TRY(AddReport(rank, std::move(report), manifest));
  }
  if (!changed) {
    manifest.tensors = tensors_;  // the layout is unchanged, so the tensors are still covered
    return manifest;
  }
  MR_TRY(MergeTensors(manifest));
  auto complete = manifest.Check("the ranks' slices");
  if (!complete) return Fail(complete.error().WithCode(Code::kInvalidArgument));
  tensors_ = manifest.tensors;
  return manifest;
}

/// Adds the rank's slices and its file to the manifest.
Status Saver::AddReport(std::size_t rank, RankReport report, Manifest& manifest) {
  Manifest& part = report.part;
  const std::uint64_t size = part.FileBytes();
  if (report.contents == RankReport::Contents::kFull)
    rank_layouts_[rank] = {std::move(part.tensors), std::move(part.slices), size};
  auto known = rank_layouts_.find(rank);
  if (known == rank_layouts_.end() || known->second.file_size != size)
    return Fail(Code::kInternal, "rank {} did not say what its file of {} bytes holds", rank, size);
  for (Slice slice : known->second.slices) {
    slice.file = part.files.empty() ? "" : part.files.begin()->first;
    manifest.slices.push_back(std::move(slice));
  }
  manifest.files.merge(part.files);
  return {};
}

Status Saver::MergeTensors(Manifest& manifest) {
  for (const auto& [rank, rank_layout] : rank_layouts_) {
    for (const auto& [name, meta] : rank_layout.tensors) {
      auto [tensor, added] = manifest.tensors.emplace(name, meta);
      if (tensor->second != meta)
        return Fail(Code::kInvalidArgument, "tensor {} has another shape on rank {} than on lower ranks", name, rank);
    }
  }
  return {};
}

/// Best effort: the garbage collection removes a file that stays.
void Saver::RemoveOwnFile(const Snapshot& snapshot, const std::string& key) {
  auto removed = snapshot.file().empty() ? Status() : object::Delete(*store_, key);
  if (!removed) options_.log.Warning("file of a failed save stays for now", {{"key", key}, {"error", removed.error()}});
}

void Saver::Collect() {
  if (peers_) DistributeManifest();
  if (is_collector()) CollectOld();
  // Wait for all machines. On a machine that is late, files of the next save would be older than this manifest, and
  // its collector would remove them as orphans.
  if (peers_) std::ignore = group_->Gather("");
}

/// Puts the manifest on every machine's disk, so that the checkpoint survives the loss of a machine.
void Saver::DistributeManifest() {
  const auto manifest = group_->Broadcast(std::move(last_manifest_));
  if (!manifest || is_leader() || !peers_->is_machine_leader()) return;
  auto put = [&]() -> Status {
    const Manifest parsed = MR_TRY(Manifest::ParsePart(*manifest, "the manifest of rank 0"));
    MR_TRY(
        object::Put(*store_, keys_.ManifestKey(parsed.step), AsBytes(*manifest), {.content_type = "application/json"}));
    return {};
  };
  if (auto done = put(); !done)
    options_.log.Warning("this machine does not have a checkpoint's manifest", {{"error", done.error()}});
}

void Saver::CollectOld() {
  RunsView view{.ours = guard_.ours(), .superseded = guard_.superseded(), .confirms_owner = {}};
  if (ownership_) view.confirms_owner = [this](const auto& listed_etag) { return ownership_->Confirm(listed_etag); };
  // A local disk would fill up with what another run left.
  const bool is_store = tier_ == CheckpointTier::kStore;
  auto collected =
      CollectGarbage({store_, root_}, options_.retention, /*dry_run=*/false, {}, is_store ? &view : nullptr);
  if (!collected) {
    options_.log.Warning("old checkpoints not removed; the next save tries again", {{"error", collected.error()}});
    return;
  }
  if (collected->objects > 0) {
    options_.log.Info("old checkpoints removed",
                      {{"checkpoints", collected->removed_steps.size()}, {"bytes", collected->bytes}});
  }
}

}  // namespace millrace::checkpoint
