#include "millrace/train/reporting/telemetry.h"

#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <variant>

#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/train/reporting/tracker_observer.h"

namespace millrace::train {
namespace {

constexpr std::size_t kQueued = 4096;                      // reports: less than 1 MB
constexpr int kQueuedHistograms = 4;                       // steps; each has some 16 kB a parameter
constexpr auto kFlushInterval = std::chrono::seconds(10);  // each flush puts the whole file again
constexpr auto kFlushTimeout = std::chrono::seconds(30);   // a flush that takes longer fails and is tried again

struct StepFigures {
  std::uint64_t step = 0;
  tracking::Metrics metrics;
};

struct StepHistograms {
  std::uint64_t step = 0;
  RunObserver::Histograms parameters;
};

}  // namespace

struct Telemetry::Rep {
  Rep(std::unique_ptr<metrics::EventWriter> event_writer, Clock& its_clock, Logger its_log)
      : writer(std::move(event_writer)), clock(its_clock), log(std::move(its_log)) {}

  void Run() {
    TimePoint flushed = clock.Now();
    while (auto queued = queue.Pop()) {
      std::visit([this](const auto& report) { Write(report); }, *queued);
      if (clock.Now() - flushed < kFlushInterval) continue;
      Flush();
      flushed = clock.Now();
    }
    if (ended) writer->AddSessionEnd();
    Flush();
  }

  void Write(const StepFigures& figures) {
    for (const auto& [tag, value] : figures.metrics) {
      writer->Add(static_cast<std::int64_t>(figures.step), {{tag, static_cast<float>(value)}});
    }
  }

  void Write(const StepHistograms& histograms) {
    const auto step = static_cast<std::int64_t>(histograms.step);
    for (const ParameterHistogram& parameter : *histograms.parameters) {
      writer->AddHistogram(step, "weights/" + parameter.name, parameter.weights.Buckets());
      writer->AddHistogram(step, "gradients/" + parameter.name, parameter.gradients.Buckets());
    }
    --waiting_histograms;
  }

  void Flush() {
    if (Status done = writer->Flush({.deadline = Deadline::After(clock, kFlushTimeout)}); !done) {
      log.Warning("TensorBoard events could not be written; training goes on", {{"error", done.error()}});
    }
  }

  const std::unique_ptr<metrics::EventWriter> writer;
  Clock& clock;
  const Logger log;
  std::uint64_t dropped = 0;
  bool ended = false;  ///< set before the queue is closed, read after
  std::atomic<int> waiting_histograms = 0;
  using Queued = std::variant<StepFigures, StepHistograms>;
  void Add(Queued queued) {
    if (!queue.TryPush(queued)) ++dropped;
  }
  Channel<Queued> queue{kQueued};
  TaskScope thread;
};

Telemetry::Telemetry(std::unique_ptr<metrics::EventWriter> writer, const Run& run, Clock& clock, Logger log)
    : rep_(std::make_unique<Rep>(std::move(writer), clock, std::move(log))) {
  rep_->writer->AddText(0, "job", "```yaml\n" + run.job + "\n```");
  rep_->writer->AddSessionStart(run.name, run.parameters);
  rep_->thread.Spawn("telemetry", [rep = rep_.get()](std::stop_token) { rep->Run(); });
}

Telemetry::~Telemetry() {
  rep_->queue.Close();
  rep_->thread.Join();
  if (rep_->dropped > 0) rep_->log.Warning("TensorBoard misses steps", {{"dropped", rep_->dropped}});
}

void Telemetry::OnEnd(const RunEnd& end) { rep_->ended = !end.error && end.outcome.complete(); }

void Telemetry::OnStep(const StepReport& report) {
  rep_->Add(StepFigures{.step = report.step, .metrics = StepMetricsOf(report)});
}

void Telemetry::OnFigures(const StepReport& means) {
  rep_->Add(StepFigures{.step = means.step, .metrics = SpeedMetricsOf(means)});
}

void Telemetry::OnHistograms(std::uint64_t step, const Histograms& histograms) {
  if (rep_->waiting_histograms >= kQueuedHistograms) {
    ++rep_->dropped;
    return;
  }
  ++rep_->waiting_histograms;
  Rep::Queued queued = StepHistograms{.step = step, .parameters = histograms};
  if (rep_->queue.TryPush(queued)) return;
  --rep_->waiting_histograms;
  ++rep_->dropped;
}

}  // namespace millrace::train
