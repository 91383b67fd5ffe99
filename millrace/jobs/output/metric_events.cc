#include "millrace/jobs/output/metric_events.h"

#include <chrono>
#include <utility>

#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/metrics/tensorboard.h"

namespace millrace::jobs {
namespace {

constexpr std::size_t kQueuedValues = 4096;
constexpr auto kFlushInterval = std::chrono::seconds(10);  // each flush puts the whole file again
constexpr auto kFlushTimeout = std::chrono::seconds(30);   // a flush that takes longer fails and is tried again

struct LoggedValue {
  std::string name;
  std::uint64_t step = 0;
  double value = 0;
};

}  // namespace

struct MetricEvents::Rep {
  Rep(std::unique_ptr<object::Connection> its_connection, std::unique_ptr<metrics::EventWriter> its_writer,
      Clock& its_clock, Logger its_log)
      : connection(std::move(its_connection)),
        writer(std::move(its_writer)),
        clock(its_clock),
        log(std::move(its_log)) {
    thread.Spawn("metric-events", [this](std::stop_token) { Run(); });
  }

  void Run() {
    TimePoint flushed = clock.Now();
    while (const auto queued = queue.Pop()) {
      const std::string tag = "metrics/" + queued->name;
      writer->Add(static_cast<std::int64_t>(queued->step), {{tag, static_cast<float>(queued->value)}});
      if (clock.Now() - flushed < kFlushInterval) continue;
      Flush();
      flushed = clock.Now();
    }
    Flush();
  }

  void Flush() {
    if (Status done = writer->Flush({.deadline = Deadline::After(clock, kFlushTimeout)}); !done) {
      log.Warning("metrics could not be written for TensorBoard; the job goes on", {{"error", done.error()}});
    }
  }

  const std::unique_ptr<object::Connection> connection;
  const std::unique_ptr<metrics::EventWriter> writer;  ///< of the thread
  Clock& clock;
  const Logger log;
  std::uint64_t dropped = 0;
  Channel<LoggedValue> queue{kQueuedValues};
  TaskScope thread;
};

MetricEvents::MetricEvents(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}

MetricEvents::~MetricEvents() {
  rep_->queue.Close();
  rep_->thread.Join();
  if (rep_->dropped > 0) rep_->log.Warning("TensorBoard misses metrics", {{"dropped", rep_->dropped}});
}

Result<std::unique_ptr<MetricEvents>> MetricEvents::Open(std::unique_ptr<object::Connection> connection,
                                                         const std::string& url, const std::string& job, Clock& clock,
                                                         Logger log) {
  auto writer = MR_TRY(metrics::EventWriter::Open(*connection, url, {.suffix = job + ".metrics"}, clock));
  return std::unique_ptr<MetricEvents>(
      new MetricEvents(std::make_unique<Rep>(std::move(connection), std::move(writer), clock, std::move(log))));
}

void MetricEvents::Add(const std::string& name, std::uint64_t step, double value) {
  LoggedValue queued{.name = name, .step = step, .value = value};
  if (!rep_->queue.TryPush(queued)) ++rep_->dropped;
}

}  // namespace millrace::jobs
