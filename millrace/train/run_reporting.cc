#include "millrace/train/run_reporting.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/engine/device/choose_device.h"
#include "millrace/metrics/endpoint.h"
#include "millrace/metrics/tensorboard.h"
#include "millrace/nvml/nvml.h"
#include "millrace/trace/recorder.h"
#include "millrace/tracking/open.h"
#include "millrace/train/auto_layout.h"
#include "millrace/train/reporting/run_recorder.h"
#include "millrace/train/reporting/step_metrics.h"
#include "millrace/train/reporting/telemetry.h"
#include "millrace/train/reporting/tracker_observer.h"

namespace millrace::train {

Result<std::unique_ptr<RunReporting>> RunReporting::Open(const ReportedRun& run, ObserverList& observers,
                                                         Heartbeat& heartbeat) {
  const Options& options = run.options;
  std::unique_ptr<RunReporting> reporting(new RunReporting(options, observers));
  reporting->leads_ = run.world.rank() == 0;
  MR_TRY(reporting->OpenTensorBoard(run));
  RankPlace place{.stage = run.layout.pipeline_rank(), .device = options.device};
  if (!options.device.is_cpu()) {
    place.gpu = nvml::GpuMeter::Open(nvml::kLibrary, engine::DevicePciBusId(options.device));
  }
  reporting->rank_exchange_ = MR_TRY(RankExchange::Make(run.world, options.rank_interval, place, *options.clock));
  if (!reporting->leads_) return reporting;
  MR_TRY(reporting->OpenHistory(run));
  MR_TRY(reporting->OpenTrackers(run, heartbeat));
  return reporting;
}

Status RunReporting::OpenTensorBoard(const ReportedRun& run) {
  if (options_.reports.tensorboard.empty()) return {};
  if (options_.reports.histograms_every > 0) {
    histograms_ = MR_TRY(ParameterHistograms::Make(run.world, run.parameters, run.layout.state()));
  }
  if (!leads_) return {};
  auto writer = MR_TRY(metrics::EventWriter::Open(run.connection, options_.reports.tensorboard,
                                                  {.suffix = options_.name + ".rank0"}, *options_.clock));
  const Telemetry::Run shown = {
      .name = options_.name, .job = options_.shown_job, .parameters = options_.hyperparameters};
  observers_.Add(std::make_unique<Telemetry>(std::move(writer), shown, *options_.clock, options_.log));
  return {};
}

/// Opens the history, and the address where it and the metrics are asked for.
Status RunReporting::OpenHistory(const ReportedRun& run) {
  if (options_.history_file.empty() && options_.reports.metrics_listen.empty()) return {};
  const double flops_rate = MR_TRY(PromisedRate(options_, run.world.size()));
  auto recorder =
      std::make_unique<RunRecorder>(options_.history_file, run.plan, flops_rate, *options_.clock, options_.log);
  const RunRecorder* const history = recorder.get();
  observers_.Add(std::move(recorder));
  if (options_.reports.metrics_listen.empty()) return {};
  auto metrics = std::make_unique<StepMetrics>(run.plan, flops_rate);
  metrics->SetNetwork(run.network);
  const StepMetrics* const figures = metrics.get();
  observers_.Add(std::move(metrics));
  metrics_server_ = MR_TRY(metrics::ServeMetrics(
      {.listen = options_.reports.metrics_listen,
       .access = {.key_file = options_.reports.metrics_key_file, .insecure = options_.reports.metrics_insecure},
       .how = "log.metrics_key_file, or log.metrics_insecure: true",
       .log = options_.log},
      {{"/metrics",
        [figures, file = options_.history_file] { return figures->PrometheusText() + LoggedMetricsText(file); }},
       {"/history", [history] { return history->ToJson(); }}}));
  return {};
}

Status RunReporting::OpenTrackers(const ReportedRun& run, Heartbeat& heartbeat) {
  if (!options_.tracking.any() && options_.callbacks.empty()) return {};
  const HeartbeatScope beating(heartbeat, std::nullopt, *options_.clock);
  auto trackers = MR_TRY(tracking::OpenTrackers(options_.tracking,
                                                {.id = run.id.empty() ? SecureHex(8) : run.id,
                                                 .name = options_.name,
                                                 .attempt = options_.attempt,
                                                 .resumed_from = run.plan.resumed_from,
                                                 .parameters = options_.hyperparameters},
                                                *options_.clock, options_.log));
  for (std::unique_ptr<tracking::Tracker>& tracker : trackers) {
    observers_.Add(std::make_unique<TrackerObserver>(std::move(tracker), options_.checkpoint.url));
  }
  if (options_.callbacks.empty()) return {};
  auto callbacks = tracking::Callbacks::Open(options_.callbacks, options_.tracking.python, options_.log);
  if (callbacks) {
    observers_.Add(std::make_unique<CallbackObserver>(*std::move(callbacks)));
  } else if (run.plan.resumed_from == 0) {
    return Fail(callbacks.error());
  } else {
    // As with trackers: nobody may be there to correct it.
    options_.log.Warning("log.callbacks cannot be opened; the run goes on without", {{"error", callbacks.error()}});
  }
  return {};
}

Status RunReporting::AfterPasses(std::uint64_t step, double scale) {
  if (!histograms_ || step % options_.reports.histograms_every != 0) return {};
  const trace::Span span("histograms", trace::Category::kOptimizer);
  auto collected = MR_TRY(histograms_->Collect(scale));
  if (leads_) {
    observers_.OnHistograms(step, std::make_shared<const std::vector<ParameterHistogram>>(std::move(collected)));
  }
  return {};
}

Status RunReporting::AfterStep(const StepReport& report, const std::optional<EvalReport>& evaluated,
                               bool tells_figures) {
  observers_.OnStep(report);
  MR_TRY(GatherRanks(report));
  interval_.Add(report);
  if (tells_figures) observers_.OnFigures(interval_.TakeMeans());
  if (evaluated) observers_.OnEvaluation(*evaluated);
  if (report.went_back) {
    observers_.OnRestart(
        {.cause = RunRestart::Cause::kWentBack, .step = *report.went_back, .attempt = options_.attempt});
  }
  return {};
}

/// Tells of the figures of all ranks, and logs which of them have become slower than their peers.
Status RunReporting::GatherRanks(const StepReport& report) {
  auto ranks = MR_TRY(rank_exchange_->AfterStep(report));
  if (!ranks || !leads_) return {};
  for (const int rank : stragglers_.Observe(*ranks, rank_exchange_->gathered_steps())) {
    const history::RankFigures& slow = (*ranks)[static_cast<std::size_t>(rank)];
    options_.log.Warning("a rank is slower than its peers", {{"slow_rank", rank},
                                                             {"times", fmt::format("{:.1f}", slow.slowness)},
                                                             {"step_s", slow.times.step},
                                                             {"data_wait_s", slow.times.data_wait}});
  }
  observers_.OnRanks(*ranks);
  return {};
}

}  // namespace millrace::train
