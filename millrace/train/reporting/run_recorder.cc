#include "millrace/train/reporting/run_recorder.h"

#include <chrono>
#include <utility>

#include "millrace/base/files/files.h"
#include "millrace/base/json.h"
#include "millrace/history/logged_metrics.h"
#include "millrace/train/reporting/rank_exchange.h"
#include "millrace/train/reporting/stopwatch.h"

namespace millrace::train {
namespace {

constexpr auto kWriteInterval = std::chrono::seconds(1);

}  // namespace

std::string LoggedMetricsText(const std::filesystem::path& history_file) {
  if (history_file.empty()) return "";
  const std::filesystem::path file = history_file.parent_path() / history::kMetricsFile;
  const auto text = ReadFile(file, history::kMaxMetricsBytes);
  const auto metrics = text ? history::LoggedMetrics::Parse(*text, file.string()) : Fail(text.error());
  return metrics ? metrics->PrometheusText() : "";
}

RunRecorder::RunRecorder(std::filesystem::path file, const Plan& plan, double flops_rate, Clock& clock, Logger log)
    : file_(std::move(file)), clock_(clock), log_(std::move(log)) {
  if (!file_.empty() && plan.resumed_from > 0) {
    // If the file is damaged or of another version, only old points of charts are lost.
    if (const auto text = ReadFile(file_, history::kMaxHistoryBytes)) {
      if (auto before = history::RunHistory::Parse(*text, file_.string())) history_ = *std::move(before);
    }
  }
  history_.Start({.name = plan.name,
                  .precision = plan.precision,
                  .checkpoint_url = plan.checkpoint_url,
                  .ranks = plan.ranks,
                  .steps = plan.steps,
                  .parameters = static_cast<std::uint64_t>(plan.parameters),
                  .global_batch = static_cast<std::uint64_t>(plan.global_batch),
                  .sequence_length = static_cast<std::uint64_t>(plan.sequence_length),
                  .flops_rate = flops_rate},
                 Now(), plan.resumed_from);
  if (file_.empty()) return;
  writer_.Spawn("history", [this](std::stop_token stop) {
    do Write();
    while (clock_.SleepFor(kWriteInterval, stop));
  });
}

RunRecorder::~RunRecorder() { Stop(); }

/// Writes what has changed. Nothing is written later.
void RunRecorder::Stop() {
  if (file_.empty()) return;
  writer_.RequestStop();
  writer_.Join();
  Write();
}

double RunRecorder::Now() const { return std::chrono::duration<double>(clock_.Wall().time_since_epoch()).count(); }

void RunRecorder::OnStep(const StepReport& report) {
  history::ChartPoint point{.first_step = report.step,
                            .last_step = report.step,
                            .loss = report.loss,
                            .losses = 1,
                            .lr = report.lr,
                            .grad_norm = report.grad_norm,
                            .tokens = report.tokens,
                            .flops = static_cast<double>(report.tokens) * report.flops_per_token,
                            .times = TimesOf(report)};
  MutexLock lock(mutex_);
  history_.AddStep(std::move(point), Now());
  changed_ = true;
}

void RunRecorder::OnEvaluation(const EvalReport& report) {
  MutexLock lock(mutex_);
  history_.AddEvaluation({.step = report.step, .metrics = report.Metrics()});
  changed_ = true;
}

void RunRecorder::OnCheckpoint(const Result<checkpoint::SaveStats>& saved) {
  history::CheckpointNote note{.tier = "store", .time = Now()};
  if (saved) {
    note.step = saved->step;
    note.tier = saved->tier == checkpoint::CheckpointTier::kLocal ? "local" : "store";
    note.bytes = saved->bytes;
    note.seconds = SecondsOf(saved->total);
  } else {
    note.error = saved.error().ToString();
  }
  MutexLock lock(mutex_);
  if (!saved && history_.latest()) note.step = history_.latest()->last_step;
  history_.AddCheckpoint(std::move(note));
  changed_ = true;
}

void RunRecorder::OnRanks(std::span<const history::RankFigures> ranks) {
  MutexLock lock(mutex_);
  history_.SetRanks({ranks.begin(), ranks.end()});
  changed_ = true;
}

void RunRecorder::OnEnd(const RunEnd&) { Stop(); }

std::string RunRecorder::ToJson() const {
  MutexLock lock(mutex_);
  return DumpJson(history_.ToJson()) + "\n";
}

void RunRecorder::Write() {
  std::string text;
  {
    MutexLock lock(mutex_);
    if (!std::exchange(changed_, false)) return;
    text = DumpJson(history_.ToJson()) + "\n";
  }
  Status written = ReplaceFile(file_, AsBytes(text));
  if (!written && !std::exchange(failed_, true)) {
    log_.Warning("the history of the run cannot be written; training goes on", {{"error", written.error()}});
  }
}

}  // namespace millrace::train
