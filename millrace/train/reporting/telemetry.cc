#include "millrace/train/reporting/telemetry.h"

#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <variant>

#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/task_scope.h"

namespace millrace::train {
namespace {

constexpr std::size_t kQueued = 4096;                      // reports: less than 1 MB
constexpr int kQueuedHistograms = 4;                       // steps; each has some 16 kB a parameter
constexpr auto kFlushInterval = std::chrono::seconds(10);  // each flush puts the whole file again
constexpr auto kFlushTimeout = std::chrono::seconds(30);   // a flush that takes longer fails and is tried again

/// The speed and the waits of a step, or the means of several.
struct StepSpeed {
  StepReport report;
};

/// The histograms of a step.
struct StepHistograms {
  std::uint64_t step = 0;
  std::vector<ParameterHistogram> parameters;
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

  void Write(const StepReport& r) {
    const auto f = [](double value) { return static_cast<float>(value); };
    writer->Add(static_cast<std::int64_t>(r.step),
                {{"train/loss", f(r.loss)}, {"train/lr", f(r.lr)}, {"train/grad_norm", f(r.grad_norm)}});
    for (const auto& [name, value] : r.preferences) {
      const std::string tag = "train/" + name;
      writer->Add(static_cast<std::int64_t>(r.step), {{tag, f(value)}});
    }
    for (const auto& [name, value] : r.evaluated) {
      const std::string tag = "eval/" + name;
      writer->Add(static_cast<std::int64_t>(r.step), {{tag, f(value)}});
    }
  }

  void Write(const StepSpeed& speed) {
    const StepReport& r = speed.report;
    const auto f = [](double value) { return static_cast<float>(value); };
    const double share = r.step_s > 0 ? 1 / r.step_s : 0;
    const auto on = [&](data::LoadStage stage) { return r.data_wait_on_s[static_cast<std::size_t>(stage)]; };
    writer->Add(static_cast<std::int64_t>(r.step),
                {{"speed/tokens_per_s", f(r.tokens_per_s())},
                 {"speed/data_wait_share", f(r.data_wait_s * share)},
                 {"speed/data_wait_on_network_share", f(on(data::LoadStage::kNetwork) * share)},
                 {"speed/data_wait_on_tokenize_share", f(on(data::LoadStage::kTokenize) * share)},
                 {"speed/comm_wait_share", f(r.comm_wait_s * share)},
                 {"speed/checkpoint_wait_share", f(r.checkpoint_wait_s * share)}});
  }

  void Write(const StepHistograms& histograms) {
    const auto step = static_cast<std::int64_t>(histograms.step);
    for (const ParameterHistogram& parameter : histograms.parameters) {
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
  using Queued = std::variant<StepReport, StepSpeed, StepHistograms>;
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

void Telemetry::NoteEnd() { rep_->ended = true; }

void Telemetry::Add(const StepReport& report) { rep_->Add(report); }

void Telemetry::AddSpeed(const StepReport& report) { rep_->Add(StepSpeed{report}); }

void Telemetry::AddHistograms(std::uint64_t step, std::vector<ParameterHistogram> histograms) {
  if (rep_->waiting_histograms >= kQueuedHistograms) {
    ++rep_->dropped;
    return;
  }
  ++rep_->waiting_histograms;
  Rep::Queued queued = StepHistograms{.step = step, .parameters = std::move(histograms)};
  if (rep_->queue.TryPush(queued)) return;
  --rep_->waiting_histograms;
  ++rep_->dropped;
}

}  // namespace millrace::train
