// The checkpoints of a run: the one that it resumes from, and those that it makes.
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
#include "millrace/checkpoint/local/peer_machines.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/engine/device/device_reader.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/object/connection.h"
#include "millrace/train/options.h"
#include "millrace/train/reporting/heartbeat.h"
#include "millrace/train/state/run_state.h"

namespace millrace::train {

/// What a run must have in common with the checkpoint that it resumes from.
struct RunIdentity {
  std::string tokenizer_fingerprint;
  std::string optimizer;
  Json adapter_config;           ///< as RunState has it
  std::string base_fingerprint;  ///< likewise
};

/// Whether a save to a tier would have to wait for the one before.
struct SaversBusy {
  bool store = false, local = false;
};

/// A point at which a checkpoint may be due.
struct SavePoint {
  std::uint64_t step = 0;                 ///< steps done
  bool last = false;                      ///< of this run: a checkpoint is due in any case
  std::map<std::string, double> metrics;  ///< for the manifest
  SaversBusy busy;                        ///< on any rank
};

/// Every rank makes one and calls the same functions in the same order. One owner thread.
class Checkpointing {
 public:
  /// Collective over `world`. `on_done`: as Writer::Options, on rank 0.
  /// REQUIRES: all references outlive this object.
  static Result<std::unique_ptr<Checkpointing>> Open(object::Connection& connection, engine::Collective& world,
                                                     const Options& options, Heartbeat& heartbeat,
                                                     std::function<void(const Result<checkpoint::SaveStats>&)> on_done);

  /// A checkpoint that was read.
  struct Resumed {
    RunState state;
    std::map<std::string, double> metrics;
  };
  /// Reads the newest checkpoint into the tensors. Nothing: there is none.
  /// Errors: kPreconditionFailed if it belongs to another job; lost() if another run has committed it beside this one.
  Result<std::optional<Resumed>> Resume(const std::vector<StateTensor>& tensors, const RunIdentity& identity);
  /// Waits for the saves under way, then reads the newest checkpoint as Resume() does. The heartbeat tells `step`
  /// meanwhile.
  Result<std::optional<Resumed>> GoBack(std::uint64_t step, const std::vector<StateTensor>& tensors,
                                        const RunIdentity& identity);

  /// Prepares to save the tensors, whose memory it borrows. Call it after Resume().
  Status Prepare(const std::vector<StateTensor>& tensors);

  /// Returns why this run must end: another run saves to the same place. Ranks learn of it at different times.
  std::optional<Error> lost() const;
  /// Waits until all ranks know why this run must end. REQUIRES: one of them knows.
  Error AwaitLost(std::uint64_t step);
  /// For a run that resumed and has no step to make. Fails, and so does lost(), if it is not the run's first attempt
  /// and the checkpoint is another run's. With steps to make, a run goes on from it, as its first attempt may have
  /// done.
  Status CheckComplete();

  SaversBusy busy() const;
  /// Waits until what is being saved is copied and may change. Returns how long that took.
  Duration WaitCopied() { return writer_->WaitCopied(); }
  /// Starts a save if one is due. `meta` makes its metadata. Returns the seconds that the caller waited.
  double SaveIfDue(const SavePoint& point, const std::function<Json()>& meta);
  /// Starts the save of a run that is complete, if its last step is not in the store.
  void SaveFinished(std::uint64_t step, const std::map<std::string, double>& metrics,
                    const std::function<Json()>& meta);
  /// Waits for the saves under way. Errors: that of the last save.
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
  Status CheckWhose(const checkpoint::Manifest& newest, const std::string& name);
  Result<bool> HasCommitted();
  void Yield(checkpoint::SaveOptions& save, const SavePoint& point);
  void Start(std::uint64_t step, checkpoint::SaveOptions save, bool last, const std::function<Json()>& meta);

  object::Connection& connection_;
  engine::Collective& world_;
  const Options& options_;
  Heartbeat& heartbeat_;
  const std::function<void(const Result<checkpoint::SaveStats>&)> on_done_;
  std::shared_ptr<checkpoint::RankExchange> ranks_;  ///< what checkpoints are agreed over
  /// Machines that hold copies for each other; null: one local folder or none.
  std::shared_ptr<checkpoint::PeerMachines> machines_;
  checkpoint::RunLineage run_;     ///< the same on all ranks
  std::optional<Error> lost_;      ///< for the checkpoint that it would go on from
  std::optional<Error> stranger_;  ///< the run has resumed, not for the first time, from another's checkpoint
  std::optional<std::uint64_t> saved_step_;
  std::optional<checkpoint::CheckpointId> parent_;
  bool store_due_ = false;                     ///< a checkpoint that was put off
  std::vector<checkpoint::SaveSlice> slices_;  ///< this rank's share of the tensors
  std::unique_ptr<MemoryBudget> snapshot_budget_;
  engine::DeviceReader device_;  ///< of the tensors; goes after the writer, which reads with it
  std::unique_ptr<checkpoint::Writer> writer_;
};

}  // namespace millrace::train
