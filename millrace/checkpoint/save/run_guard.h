// A guard that detects another run that saves checkpoints to the same root, so that two runs do not mix theirs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/save/ownership.h"
#include "millrace/object/location.h"

namespace millrace::checkpoint {

/// Tells a run's checkpoints, and those that it went on from, from another run's. Rank 0 has one for each tier. Not
/// thread-safe.
class RunGuard {
 public:
  /// `run`: nothing if the caller does not know it. The run then gets a random id, and what is there at the first look
  /// counts as its past. `resumed`: the step of the checkpoint that the run went on from.
  /// `ownership`: the run's claim on `root`; null: it has none.
  RunGuard(object::Location root, std::optional<RunLineage> run, std::optional<std::uint64_t> resumed,
           std::shared_ptr<Ownership> ownership, Logger log);

  /// Lists the checkpoints and reads the manifests of those that are new. Returns why this run must not save any more,
  /// or nothing. It must not if another attempt has taken over the run's claim, if another run has committed a later
  /// step than this run, or if a later attempt of this run has committed one. A late commit of an earlier attempt of
  /// this run is no reason. Of two runs that save to one place, so the one that is behind ends. Warns of other
  /// checkpoints of another run, once of each. Blocks. Errors: those of the store.
  Result<std::optional<Error>> FindWinner();
  /// Call it after each commit of this run.
  void NoteCommit(std::uint64_t step);

  /// Returns what the next manifest says of its run.
  const RunLineage& run() const { return run_; }
  /// Returns the steps whose checkpoints this run or its past made, as of the last look or commit.
  const std::set<std::uint64_t>& ours() const { return ours_; }
  /// Returns the steps whose checkpoints were committed by an attempt that had lost its claim to this run.
  const std::set<std::uint64_t>& superseded() const { return superseded_; }

 private:
  std::optional<Error> Judge(const Manifest& manifest);

  const object::Location root_;
  const std::shared_ptr<Ownership> ownership_;
  const Logger log_;
  RunLineage run_;
  bool knows_past_;
  std::optional<std::uint64_t> newest_;  ///< of this run: resumed from or committed
  std::set<std::uint64_t> known_, ours_, superseded_;
};

}  // namespace millrace::checkpoint
