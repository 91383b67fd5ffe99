// Saving checkpoints in the background.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/error.h"
#include "millrace/base/log.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/checkpoint/commit/retention.h"
#include "millrace/checkpoint/format/contents.h"
#include "millrace/checkpoint/format/provenance.h"
#include "millrace/checkpoint/save/checkpoint_tier.h"
#include "millrace/checkpoint/save/local_tier_options.h"
#include "millrace/checkpoint/save/rank_exchange.h"
#include "millrace/checkpoint/save/save_slice.h"
#include "millrace/object/connection.h"

namespace millrace::checkpoint {

class Ownership;
class PeerReplicator;

/// The statistics of a save on this rank.
struct SaveStats {
  std::uint64_t step = 0;   ///< of the save
  std::uint64_t bytes = 0;  ///< written by this rank
  Duration blocked{0};      ///< what the caller waited: for the save before and for the copy; and SaveOptions::held_up
  Duration total{0};        ///< until committed
  CheckpointTier tier = CheckpointTier::kStore;  ///< where it was saved
};

/// The options of one save. The same on all ranks, but for `metrics` and `held_up`.
struct SaveOptions {
  std::map<std::string, double> metrics;  ///< for the manifest; rank 0's count, and only finite ones
  Duration held_up{0};                    ///< what the save has taken of the caller's time before Start
  bool to_store = true;                   ///< save to Writer::Options::url
  bool to_local = false;  ///< save to Writer::Options::local; if both are set, the local tier comes first
};

/// Saves checkpoints asynchronously. Copies the slices into a buffer of its own; a background thread uploads and
/// commits. At most one save to each tier is under way. If memory has room for one buffer only (see local_group), at
/// most one save at all is under way. The next save waits, unless the caller asks busy() first. One caller thread.
/// Destruction waits for the saves under way.
class Writer {
 public:
  /// Options that stay the same for all saves of a writer.
  struct Options {
    std::string url;                        ///< such as s3://runs/llama-demo
    Retention retention;                    ///< which checkpoints in the store stay
    std::optional<LocalTierOptions> local;  ///< a second place to save to; nothing: none
    /// The machines that hold copies for each other; null if all ranks see one local folder. From
    /// PeerMachines::Connect.
    std::shared_ptr<PeerReplicator> local_peers;
    /// A second group of the same ranks, for the exchanges about the local tier. With it, a save to the local tier goes
    /// on beside a save to the store, from a second buffer. This also needs `snapshot_bytes`, and room for both buffers
    /// in the budget when the writer opens. Null: both tiers share one group, and saves follow each other. Set it on
    /// all ranks or on none; the ranks' memory may differ.
    std::shared_ptr<RankExchange> local_group;
    std::uint64_t part_bytes = 8 * kMiB;   ///< of one request
    std::uint64_t chunk_bytes = 1 * kMiB;  ///< of one checksum; 4 KiB to 1 GiB
    int parallel_parts = 4;                ///< requests in flight
    std::uint64_t bandwidth = 0;           ///< the most bytes a second that this rank sends to the store; 0: no limit
    /// The longest that a rank's upload to the store may take. A longer one fails the save on all ranks, and the save
    /// leaves nothing behind. Zero: no limit.
    Duration upload_limit{0};
    /// Bytes of this rank's tensors in a save, if known beforehand. The writer then allocates the buffer, with 1 MiB
    /// more for a header, and touches its pages in the background, so that the first save is as fast as later ones.
    /// With two buffers neither grows beyond this size.
    std::uint64_t snapshot_bytes = 0;
    SliceReader read_slices;        ///< empty: their memory is this process's
    Clock* clock = &SystemClock();  ///< must outlive the writer
    Logger log;                     ///< what becomes of the saves
    Provenance written_by;          ///< for the manifest; rank 0's counts
    /// The run that saves; rank 0's counts. With it, whatever is in the store after `parent` is another run's, unless
    /// it names this run. Nothing: the checkpoints that the first save finds are this run's past.
    std::optional<RunLineage> run;
    /// The claim of `run` on `url`; rank 0's counts. Manifests carry its epoch. All saves fail for good once another
    /// attempt has taken over. Null: the run has no claim, and is fenced by nothing but the steps of others.
    std::shared_ptr<Ownership> ownership;
    std::optional<CheckpointId>
        parent;  ///< the checkpoint that the run resumed from; a later save names the one before
    /// Called when a save to a tier has been committed there or has failed. On a background thread, one call at a time.
    std::function<void(const Result<SaveStats>&)> on_done;
  };

  /// The buffers are reserved in `budget` for as long as the writer lives. `budget` must outlive the
  /// writer. A save that needs more than the whole budget fails with kResourceExhausted.
  static Result<std::unique_ptr<Writer>> Open(object::Connection& connection, std::shared_ptr<RankExchange> group,
                                              MemoryBudget& budget, Options options);
  virtual ~Writer() = default;

  /// Starts a save. Collective: every rank calls it with the same step and options. Waits for a save under way if
  /// busy() says so, then returns; the copy goes on in the background. The slices' bytes must not change until
  /// WaitCopied returns. Returns how long the caller waited. `meta` is rank 0's: a JSON text, or empty. `millrace ckpt
  /// export` writes its member "model_config" as config.json. A save fails on all ranks, and nothing of it is
  /// committed, if any rank fails, if `meta` is no JSON text, or if the slices of all ranks do not cover every tensor
  /// exactly once. It fails with kAlreadyExists if the step is committed already, and with kPreconditionFailed if
  /// another run saves to the same place and is ahead. Errors: that of an earlier save, if one failed and Wait has not
  /// returned its error. The new save is started all the same.
  virtual Result<Duration> Start(std::uint64_t step, const std::vector<SaveSlice>& slices, std::string meta,
                                 const SaveOptions& options = {}) = 0;
  /// Waits until the slices of the last Start are copied and may change. Returns how long that took.
  virtual Duration WaitCopied() = 0;
  /// Start and WaitCopied.
  Result<Duration> Save(std::uint64_t step, const std::vector<SaveSlice>& slices, std::string meta,
                        const SaveOptions& options = {});
  /// Returns whether Start with these options would wait for a save that is under way. Ranks may differ; they must
  /// agree before they skip a save.
  virtual bool busy(const SaveOptions& next = {}) const = 0;
  /// Returns why all further saves to a tier fail: another run saves to the same place and is ahead. Ranks learn of it
  /// at different times; after Wait() all know it.
  virtual std::optional<Error> lost() const = 0;
  /// Waits for all saves under way and for the garbage collection after them. Returns nothing if there was no save
  /// since the last Wait. Of a save to both tiers it returns the result for the store. Of several saves it returns the
  /// first that failed, else the last.
  virtual Result<std::optional<SaveStats>> Wait() = 0;
};

}  // namespace millrace::checkpoint
