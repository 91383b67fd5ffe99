// One save of all ranks to one tier: the protocol of docs/formats/checkpoint.md, "Saving".
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/checkpoint/commit/commit.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/save/pacer.h"
#include "millrace/checkpoint/save/rank_messages.h"
#include "millrace/checkpoint/save/snapshot.h"
#include "millrace/checkpoint/save/upload.h"
#include "millrace/checkpoint/save/writer.h"

namespace millrace::checkpoint {

/// The arguments of a save beside the snapshot. `meta` and `metrics` count on rank 0 only.
struct SaveJob {
  std::uint64_t step = 0;
  Json meta;
  std::map<std::string, double> metrics;
  Status snapshot;  ///< the result of Snapshot::Take on this rank
};

/// Saves to one tier, one save after the other. All ranks make the same exchanges in the same order. One thread at a
/// time, as for its group.
class Saver {
 public:
  /// Saves below `root`; ignores options.url. With `peers`, `root` is a folder on this machine's own disk.
  Saver(object::Location root, std::shared_ptr<RankExchange> group, const Writer::Options& options,
        std::shared_ptr<PeerReplicator> peers = nullptr);

  /// Collective. Makes the same three exchanges whatever fails in between, so no rank waits for a rank that has failed.
  /// Blocks until the save is committed or has failed on all ranks.
  Status Save(const SaveJob& job, const Snapshot& snapshot);
  /// Removes what retention does not keep. Call it after a save; collective if there are `peers`. Rank 0 collects, or
  /// the first rank of each machine, after that rank has the manifest too. Logs failures; the next call tries again.
  /// Also logs a warning if another run has committed checkpoints here since this run's last save.
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
  Result<std::string> BeginAttempt(std::uint64_t step, std::string& expected);
  Result<RankReport> Upload(const SaveJob& job, const Snapshot& snapshot, std::string_view attempt,
                            const std::string& key);
  CommitOutcome Commit(const SaveJob& job, const std::string& attempt, const std::string& expected,
                       std::vector<std::string> reports);
  Result<Manifest> Merge(const SaveJob& job, const std::string& attempt, std::vector<std::string> reports);
  Status AddReport(std::size_t rank, RankReport report, Manifest& manifest);
  Status MergeTensors(Manifest& manifest);
  void DistributeManifest();
  void CollectOld();
  void WarnOfOtherRuns(const std::vector<std::uint64_t>& committed);
  void RemoveOwnFile(const Snapshot& snapshot, const std::string& key);

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

  // On rank 0 only.
  std::optional<CheckpointId> parent_;       ///< of the next save: the last checkpoint
  std::optional<CheckpointId> grandparent_;  ///< the parent of parent_
  std::string last_manifest_;                ///< for the other machines
  std::map<std::size_t, RankLayout> rank_layouts_;
  std::map<std::string, TensorMeta> tensors_;  ///< of all ranks, as last checked
};

}  // namespace millrace::checkpoint
