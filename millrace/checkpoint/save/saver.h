// One save of all ranks into one place: the protocol of docs/formats/checkpoint.md, "Saving".
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/checkpoint/commit/commit.h"
#include "millrace/checkpoint/format/layout.h"
#include "millrace/checkpoint/save/pacer.h"
#include "millrace/checkpoint/save/rank_messages.h"
#include "millrace/checkpoint/save/snapshot.h"
#include "millrace/checkpoint/save/upload.h"
#include "millrace/checkpoint/save/writer.h"

namespace millrace::checkpoint {

/// What is to be saved beside the snapshot. `meta` and `metrics` are rank 0's.
struct SaveJob {
  std::uint64_t step = 0;
  Json meta;
  std::map<std::string, double> metrics;
  Status snapshot;  ///< how this rank's copy went
};

/// Belongs to one thread at a time, as its group does: all ranks go through the same exchanges in the same order.
class Saver {
 public:
  /// Of `options` the url counts not: `root` is the place, each machine's own where there are `peers`.
  Saver(object::Location root, std::shared_ptr<Group> group, const Writer::Options& options,
        std::shared_ptr<PeerReplicator> peers = nullptr);

  /// Collective. Goes through the same three exchanges whatever fails in between, so that nobody waits for a rank that
  /// has given up.
  Status Save(const SaveJob& job, const Snapshot& snapshot);
  /// After a save; collective where there are machines. Rank 0, or the first rank of each machine, once it has the
  /// manifest too: what retention lets go. Failures are logged; the next call tries again. So are checkpoints that
  /// another run has made since the last save of this one.
  void Collect();
  std::string name() const;  ///< s3://runs/llama-demo

 private:
  /// What a rank's file holds, as it last reported in full.
  struct Structure {
    std::map<std::string, TensorMeta> tensors;
    std::vector<Slice> slices;
    std::uint64_t file_size = 0;
  };

  bool leader() const { return group_->rank() == 0; }
  bool collects() const { return peers_ ? peers_->leads() : leader(); }
  Result<std::string> Begin(std::uint64_t step, std::string& expected);
  Result<RankReport> Upload(const SaveJob& job, const Snapshot& snapshot, std::string_view attempt,
                             const std::string& key);
  CommitOutcome Commit(const SaveJob& job, const std::string& attempt, const std::string& expected,
                       std::vector<std::string> reports);
  Result<Manifest> Merge(const SaveJob& job, const std::string& attempt, std::vector<std::string> reports);
  Status AddReport(std::size_t rank, RankReport report, Manifest& manifest);
  Status MergeTensors(Manifest& manifest);
  void Spread();
  void RemoveOld();
  void WarnOfOthers(const std::vector<std::uint64_t>& committed);
  void RemoveOwnFile(const Snapshot& snapshot, const std::string& key);

  const std::shared_ptr<object::Store> store_;
  const std::string root_;
  const Layout layout_;
  const std::shared_ptr<Group> group_;
  const Writer::Options options_;
  const std::shared_ptr<PeerReplicator> peers_;
  Pacer pacer_;
  /// What rank 0 knows of this rank's file.
  struct Told {
    const Snapshot* of = nullptr;
    std::uint64_t layout = 0;
    bool operator==(const Told&) const = default;
  };
  Told told_;

  // Rank 0's.
  std::optional<CheckpointId> parent_;  ///< of the next save
  std::optional<CheckpointId> before_;  ///< its own parent
  std::string committed_;               ///< the last manifest, for the other machines
  std::map<std::size_t, Structure> structures_;
  std::map<std::string, TensorMeta> tensors_;  ///< of all structures, as last checked
};

}  // namespace millrace::checkpoint
