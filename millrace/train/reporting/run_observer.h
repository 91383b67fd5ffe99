// A run is a stream of events: its plan, its steps, evaluations, checkpoints, restarts, and its end. Whoever wants to
// know of them is an observer: the console, the history, TensorBoard, metrics, traces, trackers, users' call-backs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/history/run_history.h"
#include "millrace/train/reporting/parameter_histograms.h"
#include "millrace/train/reporting/report.h"

namespace millrace::train {

struct CompileReport;  // compile/step_compiler.h

/// The run goes on from a checkpoint.
struct RunRestart {
  enum class Cause {
    kResumed,   ///< an earlier attempt saved it
    kWentBack,  ///< the loss or the gradient jumped in this attempt
  };
  Cause cause = Cause::kResumed;
  std::uint64_t step = 0;  ///< of the checkpoint
  int attempt = 1;         ///< the number of this start
  Json ToJson() const;
};

/// The end of a run: an outcome, or an error.
struct RunEnd {
  RunOutcome outcome;  ///< with an error: the steps that were done
  std::optional<Error> error;
  Json ToJson() const;
};

/// Returns the object that `millrace-train --json` prints for a checkpoint that was committed or has failed.
Json CheckpointJson(const Result<checkpoint::SaveStats>& saved);

/// Gets the events of a run. Each function does nothing unless it is overridden. OnCheckpoint() is called by the thread
/// that commits checkpoints, at any time between OnPlan() and OnEnd(); the others by the thread of Train(), in the
/// order of the events. A step waits for them, so they must not block: an observer that writes to a disk or to a
/// network has a bounded queue and a thread of its own. Exceptions are OnStepEnd(), which may talk to the other ranks,
/// and OnEnd(), which may take half a minute.
///
/// Functions return nothing: an observer that fails says so in its log, once, and the run goes on. If one throws, the
/// run goes on without this observer.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  /// For messages: "TensorBoard".
  virtual std::string_view observer_name() const = 0;

  /// A step was compiled: before OnPlan(), with Compile::kOn.
  virtual void OnCompiled(const CompileReport& report) { (void)report; }
  /// The run is prepared, and its first step comes next.
  virtual void OnPlan(const Plan& plan) { (void)plan; }
  /// The run goes on from a checkpoint: behind OnPlan() of a run that resumes, or behind the step whose loss jumped.
  virtual void OnRestart(const RunRestart& restart) { (void)restart; }
  /// Step `step`, counted from 1, begins.
  virtual void OnStepBegin(std::uint64_t step) { (void)step; }
  /// The figures of a step.
  virtual void OnStep(const StepReport& report) { (void)report; }
  /// Every log_every steps and behind the last one: the step's figures, with the means of the times since the last
  /// call. Behind OnStep().
  virtual void OnFigures(const StepReport& means) { (void)means; }
  /// Behind OnFigures() of its step.
  virtual void OnEvaluation(const EvalReport& report) { (void)report; }
  /// Weights before the update of a step, and its gradients; before OnStep(). Shared with other observers.
  using Histograms = std::shared_ptr<const std::vector<ParameterHistogram>>;
  virtual void OnHistograms(std::uint64_t step, const Histograms& histograms) { (void)step, (void)histograms; }
  /// Figures of all ranks, means of their last steps: about once per rank_interval, behind OnStep().
  virtual void OnRanks(std::span<const history::RankFigures> ranks) { (void)ranks; }
  /// A checkpoint was committed, or failed. Training continues after a failure.
  virtual void OnCheckpoint(const Result<checkpoint::SaveStats>& saved) { (void)saved; }
  /// All of a step is done: its evaluation, and the begin of its checkpoint. `last`: no step follows in this run.
  virtual void OnStepEnd(std::uint64_t step, bool last) { (void)step, (void)last; }
  /// The last event, if there was an OnPlan().
  virtual void OnEnd(const RunEnd& end) { (void)end; }
};

/// Hands each event on to a list of observers, in the order in which they were added; OnEnd() in the reverse order, so
/// that the caller's observers hear of the end when the others have written all. Observers are added before the first
/// event that they should get. Destroys those that it owns, the last one first.
class ObserverList final : public RunObserver {
 public:
  explicit ObserverList(Logger log) : log_(std::move(log)) {}
  ~ObserverList() override;
  /// REQUIRES: `observer` outlives the list.
  void Add(RunObserver& observer);
  void Add(std::unique_ptr<RunObserver> observer);

  std::string_view observer_name() const override { return "observers"; }
  void OnCompiled(const CompileReport& report) override;
  void OnPlan(const Plan& plan) override;
  void OnRestart(const RunRestart& restart) override;
  void OnStepBegin(std::uint64_t step) override;
  void OnStep(const StepReport& report) override;
  void OnFigures(const StepReport& means) override;
  void OnEvaluation(const EvalReport& report) override;
  void OnHistograms(std::uint64_t step, const Histograms& histograms) override;
  void OnRanks(std::span<const history::RankFigures> ranks) override;
  void OnCheckpoint(const Result<checkpoint::SaveStats>& saved) override;
  void OnStepEnd(std::uint64_t step, bool last) override;
  void OnEnd(const RunEnd& end) override;

 private:
  struct Listed {
    RunObserver* observer;
    std::unique_ptr<RunObserver> owned;  ///< null: borrowed
    std::atomic<bool> failed = false;
    explicit Listed(RunObserver* of, std::unique_ptr<RunObserver> own = nullptr)
        : observer(of), owned(std::move(own)) {}
  };
  void Tell(const std::function<void(RunObserver&)>& event);
  void Tell(Listed& listed, const std::function<void(RunObserver&)>& event);

  const Logger log_;
  std::vector<std::unique_ptr<Listed>> observers_;
};

}  // namespace millrace::train
