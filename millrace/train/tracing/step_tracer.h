// Records some steps of a run on each rank, and writes their trace into the run's folder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/data/batch/stage_trace.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/object/connection.h"
#include "millrace/object/location.h"
#include "millrace/trace/recorder.h"
#include "millrace/trace/trace_file.h"
#include "millrace/train/options/profile_options.h"
#include "millrace/train/reporting/heartbeat.h"
#include "millrace/train/reporting/run_observer.h"
#include "millrace/train/tracing/traced_store.h"

namespace millrace::train {

/// A rank's clock minus rank 0's, and the most that this may be off.
struct ClockOffset {
  Duration offset{0}, error{0};
};

/// Returns the offset of each rank. An offset below its error is 0: the ranks of a machine share its clock. All ranks
/// call it. Takes about 16 round trips for each rank. Errors: kUnavailable if a rank is lost.
Result<std::vector<ClockOffset>> MeasureClockOffsets(engine::Collective& world, const Clock& clock);

/// Every rank of a run with train.profile has one, and makes the same calls. Its thread is the one that trains; other
/// threads may use recorder().
class StepTracer {
 public:
  /// Compares the clocks of the ranks. Collective over `world`. REQUIRES: `connection`, `world` and `clock` outlive the
  /// tracer. Errors: those of the URL; kUnavailable if a rank is lost.
  static Result<std::unique_ptr<StepTracer>> Open(object::Connection& connection, engine::Collective& world,
                                                  const ProfileOptions& options, const Clock& clock, Logger log);

  trace::Recorder& recorder() { return recorder_; }
  /// Returns what a data loader calls for each micro-batch (LoaderOptions::on_made). Borrows the recorder.
  std::function<void(std::uint64_t number, const data::StageTrace& trace)> OnMade();
  /// Records a checkpoint that is committed now. The thread that commits calls it.
  void NoteCheckpoint(const Result<checkpoint::SaveStats>& saved);

  /// Starts to record if `step`, counted from 1, is to be traced.
  void BeforeStep(std::uint64_t step);
  /// Returns whether the trace is to be written now: `step` is done and was the last one to be traced, or the run is
  /// `ending` before it.
  bool IsDue(std::uint64_t step, bool ending) const;
  /// Writes this rank's trace, with `others`. Rank 0 joins those of all ranks. Collective. What the store does not take
  /// is logged. Errors: kUnavailable if a rank is lost.
  Status Write(const trace::OtherSpans& others = {});

 private:
  StepTracer(object::Location folder, engine::Collective& world, ProfileOptions options,
             std::vector<ClockOffset> clocks, const Clock& clock, Logger log)
      : folder_(std::move(folder)),
        world_(world),
        options_(std::move(options)),
        clocks_(std::move(clocks)),
        clock_(clock),
        log_(std::move(log)),
        recorder_(clock) {}
  Status PutOwn(const trace::OtherSpans& others);
  Status Join();
  Status Put(const std::string& key, const std::string& text) const;

  const object::Location folder_;
  engine::Collective& world_;
  const ProfileOptions options_;
  const std::vector<ClockOffset> clocks_;
  const Clock& clock_;
  const Logger log_;
  trace::Recorder recorder_;
  bool started_ = false, written_ = false;
};

/// Records what the thread of Train() does in each step. Behind the last step to be traced, all ranks write their
/// traces, while `heartbeat` beats. If a rank is lost then, the log says so, and the run notices in its next exchange.
class TraceObserver final : public RunObserver {
 public:
  /// `requests` records those to stores. REQUIRES: all references outlive this object.
  TraceObserver(StepTracer& tracer, const TracedConnection& requests, Heartbeat& heartbeat, Clock& clock, Logger log)
      : tracer_(tracer), requests_(requests), heartbeat_(heartbeat), clock_(clock), log_(std::move(log)) {}
  std::string_view observer_name() const override { return "train.profile"; }
  void OnStepBegin(std::uint64_t step) override;
  void OnCheckpoint(const Result<checkpoint::SaveStats>& saved) override { tracer_.NoteCheckpoint(saved); }
  void OnStepEnd(std::uint64_t step, bool last) override;
  void OnEnd(const RunEnd& end) override;

 private:
  StepTracer& tracer_;
  const TracedConnection& requests_;
  Heartbeat& heartbeat_;
  Clock& clock_;
  const Logger log_;
  std::optional<trace::ThreadScope> scope_;  ///< in a step, of the thread of Train()
};

}  // namespace millrace::train
