// The observers that a run's options ask for, and what each step tells them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "millrace/base/result.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/engine/parameters/parameter_buffer.h"
#include "millrace/history/stragglers.h"
#include "millrace/http/server/server.h"
#include "millrace/object/connection.h"
#include "millrace/train/layout.h"
#include "millrace/train/options.h"
#include "millrace/train/ranks/link_check.h"
#include "millrace/train/reporting/heartbeat.h"
#include "millrace/train/reporting/parameter_histograms.h"
#include "millrace/train/reporting/rank_exchange.h"
#include "millrace/train/reporting/run_observer.h"

namespace millrace::train {

/// The run that observers hear of.
struct ReportedRun {
  object::Connection& connection;
  engine::Collective& world;
  const Options& options;
  const RankLayout& layout;
  const engine::ParameterBuffer& parameters;
  const Plan& plan;  ///< copied where it is kept
  const NetworkFigures& network;
  std::string id;  ///< in trackers: the same for all attempts of the run; empty: unknown
};

/// Every rank has one and makes the same calls, on the thread of Train(). Only rank 0 has observers of its own, but the
/// ranks bring their figures and their histograms together.
class RunReporting {
 public:
  /// Adds to `observers` the history, and, as the options ask for them, TensorBoard, metrics for Prometheus, trackers
  /// and call-backs. Collective. `heartbeat` beats while trackers are slow. REQUIRES: all references, but for
  /// ReportedRun::plan and network, outlive this object, and it outlives the last event. Errors: those of addresses,
  /// URLs and trackers that cannot be opened; kUnavailable if a rank is lost.
  static Result<std::unique_ptr<RunReporting>> Open(const ReportedRun& run, ObserverList& observers,
                                                    Heartbeat& heartbeat);

  /// Tells of the weights before the update of a step, and of its gradients times `scale`, if they are due. Collective.
  Status AfterPasses(std::uint64_t step, double scale);
  /// Tells of a step, and of the evaluation behind it. `tells_figures`: log_every asks for a line. Collective.
  Status AfterStep(const StepReport& report, const std::optional<EvalReport>& evaluated, bool tells_figures);

 private:
  RunReporting(const Options& options, ObserverList& observers) : options_(options), observers_(observers) {}
  Status OpenTensorBoard(const ReportedRun& run);
  Status OpenHistory(const ReportedRun& run);
  Status OpenTrackers(const ReportedRun& run, Heartbeat& heartbeat);
  Status GatherRanks(const StepReport& report);

  const Options& options_;
  ObserverList& observers_;
  bool leads_ = false;
  std::optional<RankExchange> rank_exchange_;
  history::StragglerDetector stragglers_;          ///< of rank 0
  std::optional<ParameterHistograms> histograms_;  ///< with options_.reports.histograms_every
  StepInterval interval_;                          ///< since the last line of figures
  std::unique_ptr<http::Server> metrics_server_;   ///< goes before the observers that it shows
};

}  // namespace millrace::train
