// One rank's run, put together from its options: data, model, optimizer, checkpoints, observers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/data/loader.h"
#include "millrace/engine/options/schedule.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/object/connection.h"
#include "millrace/tokenizer/tokenizer.h"
#include "millrace/train/checkpointing.h"
#include "millrace/train/evaluator.h"
#include "millrace/train/kernel_choice.h"
#include "millrace/train/layout.h"
#include "millrace/train/open_model.h"
#include "millrace/train/options.h"
#include "millrace/train/reporting/heartbeat.h"
#include "millrace/train/reporting/run_observer.h"
#include "millrace/train/run_model.h"
#include "millrace/train/run_reporting.h"
#include "millrace/train/step_end/step_guard.h"
#include "millrace/train/step_runner.h"
#include "millrace/train/tracing/step_tracer.h"
#include "millrace/train/tracing/traced_store.h"

namespace millrace::train {

/// The parts of a run, which refer to each other, and its state: the steps that are done. The loop in trainer.cc drives
/// it. Parts are destroyed in the reverse of their order here. One thread.
struct TrainingRun {
  /// `traced`: `the_connection` if options.profile is set; or else null. On rank 0, `told` are the first observers.
  /// REQUIRES: all references, and `told`, outlive the run.
  TrainingRun(object::Connection& the_connection, TracedConnection* traced_connection, engine::Collective& world,
              const Options& its_options, const std::vector<RunObserver*>& told);

  /// Builds all of it, and resumes from the newest checkpoint. Collective. Errors: those of Train().
  Status Build();
  /// Tells the ranks that wait for this one why it fails. Without it, they would learn only that it has left.
  void Abort(const Error& cause);
  bool leads() const { return group.rank() == 0; }
  /// Returns what a checkpoint must have in common with this run.
  RunIdentity Identity() const;
  /// Takes the state of a checkpoint whose tensors were read.
  Status TakeState(const Checkpointing::Resumed& resumed);
  /// Returns the metadata of a checkpoint of the step that is done.
  Json Meta() const;

  object::Connection& connection;
  TracedConnection* const traced;  ///< with options.profile: `connection`
  engine::Collective& group;       ///< of all ranks
  std::unique_ptr<RankLayout> layout;
  const Options& options;
  Clock& clock;
  MemoryBudget data_budget;
  Heartbeat heartbeat;
  std::unique_ptr<StepTracer> tracer;  ///< with options.profile; goes after what it records
  ObserverList observers;              ///< goes after what tells them

  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::shared_ptr<data::Dataset> dataset;
  OpenedModel opened;
  RunModel model;
  EarlierKernels earlier;
  KernelChoice kernels;
  StepGuard judge;
  engine::Schedule schedule;
  Plan plan;
  std::uint64_t step = 0;  ///< steps done
  data::LoaderState data_state;
  std::map<std::string, double> quality;  ///< of the step that is done
  std::unique_ptr<data::Loader> loader;
  std::unique_ptr<StepRunner> runner;
  std::unique_ptr<Checkpointing> checkpoints;  ///< null: none are made
  std::unique_ptr<Evaluator> evaluator;        ///< null: there are no evaluations
  std::unique_ptr<RunReporting> reporting;

 private:
  Status OpenData();
  data::DatasetOptions EvaluatedData() const;
  Status OpenModel();
  Status Resume();
  Status ChooseKernels();
  Status TryStep(const engine::ops::StepKernels& trial_kernels, engine::ops::SeenProducts& seen);
  data::Loader::Options LoaderOptions() const;
  Status OpenTracer();
  /// Sets the plan of the run, and its learning rates. Only the plan of rank 0 has an estimate of memory: its machine
  /// has the file that describes the machines. Errors: those of PlannedMemory().
  Status MakePlan();
};

}  // namespace millrace::train
