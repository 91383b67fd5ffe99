// One save of all ranks to one tier: the protocol of docs/formats/checkpoint.md, "Saving".
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/checkpoint/commit/commit.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/save/peer_replicator.h"
#include "millrace/checkpoint/save/rank_messages.h"
#include "millrace/checkpoint/save/run_guard.h"
#include "millrace/checkpoint/save/snapshot.h"
#include "millrace/checkpoint/save/writer.h"

namespace millrace::checkpoint {

/// The arguments of a save beside the snapshot. `meta` and `metrics` count on rank 0 only.
struct SaveJob {
  std::uint64_t step = 0;
  std::string meta;  ///< a JSON text, or empty
  std::map<std::string, double> metrics;
  Status snapshot;  ///< the result of Snapshot::Take on this rank
};

/// Limits the rate of a stream of bytes. The first bytes pass at once, later ones when the rate allows. One thread.
class Pacer {
 public:
  /// `bytes_per_second` 0: no limit. The clock must outlive it.
  Pacer(Clock& clock, std::uint64_t bytes_per_second) : clock_(clock), rate_(bytes_per_second) {}
  /// Blocks until `bytes` more may be sent.
  void Pass(std::uint64_t bytes);

 private:
  Clock& clock_;
  const std::uint64_t rate_;
  TimePoint free_at_{};  ///< when the next bytes may be sent
};

/// Saves to one tier, one save after the other. All ranks make the same exchanges in the same order. One thread at a
/// time, as for its group.
class Saver {
 public:
  /// Saves below `root`, which is `tier`'s; ignores options.url. With `peers`, `root` is a folder on this machine's own
  /// disk.
  Saver(CheckpointTier tier, object::Location root, std::shared_ptr<RankExchange> group, const Writer::Options& options,
        std::shared_ptr<PeerReplicator> peers = nullptr);

  /// Collective. Makes the same three exchanges whatever fails in between, so no rank waits for a rank that has failed.
  /// Blocks until the save is committed or has failed on all ranks.
  Status Save(const SaveJob& job, const Snapshot& snapshot);
  /// Returns why a save failed for good: another run saves to the same place (RunGuard). The same on all ranks. All
  /// later saves fail with this error, without an exchange.
  const std::optional<Error>& lost() const { return lost_; }
  /// Removes what retention does not keep. Call it after a save; collective if there are `peers`. Rank 0 collects, or
  /// the first rank of each machine, after that rank has the manifest too. Logs failures; the next call tries again.
  /// In the store, another run's checkpoints stay.
  void Collect();
  std::string name() const;  ///< s3://runs/llama-demo

 private:
  /// The content of a rank's file, from the rank's last full report.
  struct RankLayout {
    std::map<std::string, TensorMeta> tensors;
    std::vector<Slice> slices;
    std::uint64_t file_size = 0;
  };

  bool is_leader() const { return group_->rank() == 0; }
  bool is_collector() const { return peers_ ? peers_->is_machine_leader() : is_leader(); }
  SaveBegin BeginAttempt(std::uint64_t step, std::string& expected);
  std::optional<Error> LostClaim() const;
  Result<std::string> ClearSuperseded(std::uint64_t step, const Error& taken);
  Result<RankReport> Upload(const SaveJob& job, const Snapshot& snapshot, std::string_view attempt,
                            const std::string& key);
  CommitOutcome Commit(const SaveJob& job, const std::string& attempt, const std::string& expected,
                       std::vector<std::string> reports);
  CommitOutcome ConfirmCommit(std::uint64_t step);
  Result<Manifest> Merge(const SaveJob& job, const std::string& attempt, std::vector<std::string> reports);
  Status AddReport(std::size_t rank, RankReport report, Manifest& manifest);
  Status MergeTensors(Manifest& manifest);
  void DistributeManifest();
  void CollectOld();
  void RemoveOwnFile(const Snapshot& snapshot, const std::string& key);

  const CheckpointTier tier_;
  const std::shared_ptr<object::Store> store_;
  const std::string root_;
  const CheckpointKeys keys_;
  const std::shared_ptr<RankExchange> group_;
  const Writer::Options options_;
  const std::shared_ptr<PeerReplicator> peers_;
  Pacer pacer_;
  /// The layout that this rank last reported to rank 0 in full.
  struct ReportedLayout {
    const Snapshot* snapshot = nullptr;
    std::uint64_t layout = 0;
    bool operator==(const ReportedLayout&) const = default;
  };
  ReportedLayout reported_;
  std::optional<Error> lost_;

  // On rank 0 only.
  const std::shared_ptr<Ownership> ownership_;  ///< null: the run has no claim
  RunGuard guard_;
  std::optional<CheckpointId> parent_;  ///< of the next save: the last checkpoint
  std::string last_manifest_;           ///< for the other machines
  std::map<std::size_t, RankLayout> rank_layouts_;
  std::map<std::string, TensorMeta> tensors_;  ///< of all ranks, as last checked
};

}  // namespace millrace::checkpoint
