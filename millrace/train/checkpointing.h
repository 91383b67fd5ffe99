// Reads the checkpoint that a run resumes from, and saves the run's own checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/local/peer_machines.h"
#include "millrace/checkpoint/save/ownership.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/engine/device/device_reader.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/object/connection.h"
#include "millrace/train/options.h"
#include "millrace/train/reporting/heartbeat.h"
#include "millrace/train/state/run_state.h"

namespace millrace::train {

/// The facts that must be the same in a run and in the checkpoint that it resumes from.
struct RunIdentity {
  std::string tokenizer_fingerprint;
  std::string optimizer;
  Json model_config;             ///< with the keys of Hugging Face's config.json
  Json adapter_config;           ///< as RunState has it
  std::string base_fingerprint;  ///< as RunState has it
};

/// The places where a new save would have to wait for an earlier one. `store`: the bucket. `local`: the local tier.
struct SaversBusy {
  bool store = false, local = false;
};

/// A point at which a checkpoint may be due.
struct SavePoint {
  std::uint64_t step = 0;                 ///< steps done
  bool last = false;                      ///< the last step of this run: the checkpoint is due in any case
  std::map<std::string, double> metrics;  ///< for the manifest
  SaversBusy busy;                        ///< true where any rank is busy
};

/// The checkpoints of one rank. Every rank makes one object, and calls the same functions in the same order. One owner
/// thread.
class Checkpointing {
 public:
  /// Collective over `world`. Rank 0 claims checkpoint.url, and waits for up to checkpoint::kOwnerLease if another run
  /// owns it. If that run lives, fenced() says so, and Resume() fails. `on_done` is called on rank 0 after each save,
  /// as Writer::Options::on_done. REQUIRES: all references outlive this object.
  static Result<std::unique_ptr<Checkpointing>> Open(object::Connection& connection, engine::Collective& world,
                                                     const Options& options, Heartbeat& heartbeat,
                                                     std::function<void(const Result<checkpoint::SaveStats>&)> on_done);

  /// The content of a checkpoint, without its tensors.
  struct Resumed {
    RunState state;
    std::map<std::string, double> metrics;
  };
  /// Reads the newest checkpoint into the tensors. Returns nothing if there is no checkpoint.
  /// Errors: kPreconditionFailed if the checkpoint belongs to another job; fenced() if another run has committed it
  /// while this run ran.
  Result<std::optional<Resumed>> Resume(const std::vector<StateTensor>& tensors, const RunIdentity& identity);
  /// Waits for the saves in progress, then reads the newest checkpoint as Resume() does. Meanwhile the heartbeat shows
  /// `step`.
  Result<std::optional<Resumed>> RollBack(std::uint64_t step, const std::vector<StateTensor>& tensors,
                                          const RunIdentity& identity);

  /// Prepares to save the tensors. Borrows their memory. Call it after Resume().
  Status Prepare(const std::vector<StateTensor>& tensors);

  /// Returns an error if another run saves to the same place. Then this run must end. Ranks may get the error at
  /// different times.
  std::optional<Error> fenced() const;
  /// Waits until all ranks have the error, and returns it. Meanwhile the heartbeat shows `step`. REQUIRES: fenced() has
  /// an error on some rank.
  Error AwaitFenced(std::uint64_t step);
  /// Checks a run that has no step left to make. Fails if this is not the run's first attempt, and it has resumed from
  /// another run's checkpoint; fenced() then has the error, too. A run with steps left may go on from such a
  /// checkpoint, because its first attempt may have done so, too.
  Status CheckComplete();

  ~Checkpointing();

  /// Returns the id of the first of the runs that went on from each other's checkpoints and led to this one. Call it
  /// after Resume().
  const std::string& first_run() const { return run_.after.empty() ? run_.id : run_.after.front(); }

  /// Returns the places that are busy on this rank.
  SaversBusy busy() const;
  /// Waits until the tensors of the save in progress are copied. Until then they must not change. Returns how long that
  /// took.
  Duration WaitCopied() { return writer_->WaitCopied(); }
  /// Starts a save if one is due. `meta` returns the metadata of the checkpoint. Returns the seconds that the caller
  /// waited.
  double SaveIfDue(const SavePoint& point, const std::function<Json()>& meta);
  /// Saves the last step of a complete run, unless the store has it already. Returns before the save has ended.
  void SaveFinished(std::uint64_t step, const std::map<std::string, double>& metrics,
                    const std::function<Json()>& meta);
  /// Waits for the saves in progress. Errors: that of the last save.
  Status Finish(std::uint64_t step);

 private:
  Checkpointing(object::Connection& connection, engine::Collective& world, const Options& options, Heartbeat& heartbeat,
                std::function<void(const Result<checkpoint::SaveStats>&)> on_done)
      : connection_(connection),
        world_(world),
        options_(options),
        heartbeat_(heartbeat),
        on_done_(std::move(on_done)),
        device_(options.device) {}
  bool leads() const { return world_.rank() == 0; }
  Status ClaimUrl();
  Status CheckWhose(const checkpoint::Manifest& newest, const std::string& name);
  Result<bool> HasCommitted();
  void DropBusyTiers(checkpoint::SaveOptions& save, const SavePoint& point);
  void Start(std::uint64_t step, checkpoint::SaveOptions save, bool last, const std::function<Json()>& meta);

  object::Connection& connection_;
  engine::Collective& world_;
  const Options& options_;
  Heartbeat& heartbeat_;
  const std::function<void(const Result<checkpoint::SaveStats>&)> on_done_;
  std::shared_ptr<checkpoint::RankExchange> ranks_;  ///< the group over which the ranks agree on checkpoints
  /// The machines that hold copies for each other. Null: one local folder, or no local tier.
  std::shared_ptr<checkpoint::PeerMachines> machines_;
  checkpoint::RunLineage run_;                        ///< the same on all ranks
  std::shared_ptr<checkpoint::Ownership> ownership_;  ///< on rank 0: the claim on checkpoint.url
  std::optional<Error> fenced_;          ///< another run owns the URL, or has committed what this run would go on from
  std::optional<Error> foreign_resume_;  ///< a later attempt than the first has resumed from another run's checkpoint
  std::optional<std::uint64_t> saved_step_;
  std::optional<checkpoint::CheckpointId> parent_;
  bool store_due_ = false;  ///< a save to the store was put off, and is made as soon as the store is not busy
  std::vector<checkpoint::SaveSlice> slices_;  ///< this rank's share of the tensors
  std::unique_ptr<MemoryBudget> snapshot_budget_;
  engine::DeviceReader device_;  ///< reads the tensors of the device; destroyed after the writer, which uses it
  std::unique_ptr<checkpoint::Writer> writer_;
};

}  // namespace millrace::train
