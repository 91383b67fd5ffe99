#include "apps/millrace/jobs/run_reporter.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <utility>

#include "millrace/base/files/files.h"
#include "millrace/history/report_html.h"

namespace millrace::cli {
namespace {

constexpr auto kLookInterval = std::chrono::seconds(5);    // reading a history takes milliseconds
constexpr auto kReportInterval = std::chrono::minutes(1);  // a page that somebody has open and loads again
constexpr std::size_t kMaxEvents = 256;                    // in the report; the file has all

Status AppendLine(const std::filesystem::path& path, const std::string& line) {
  const UniqueFd file = MR_TRY(OpenFile(path, O_WRONLY | O_CREAT));
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) return Fail(Code::kIo, "cannot read the size of {}", path.string());
  return WriteFully(file.get(), AsBytes(line), static_cast<std::uint64_t>(info.st_size), path.string());
}

}  // namespace

history::JobSummary SummaryOf(const jobs::JobStatus& status) {
  history::JobSummary job{
      .name = status.name, .state = status.state, .message = status.message, .restarts = status.restarts};
  for (const jobs::JobStatus::Rank& rank : status.ranks) {
    job.ranks.push_back({.node = rank.node, .state = rank.state, .pid = rank.pid, .step = rank.step});
  }
  return job;
}

std::string HistoryFileIn(const std::filesystem::path& folder) { return (folder / history::kHistoryFile).string(); }

std::string ReportFileIn(const std::filesystem::path& folder) { return (folder / "report.html").string(); }

history::RunHistory HistoryIn(const std::filesystem::path& folder) {
  const std::string path = HistoryFileIn(folder);
  const auto text = ReadFile(path, history::kMaxHistoryBytes);
  auto history = text ? history::RunHistory::Parse(*text, path) : Result<history::RunHistory>(history::RunHistory());
  return history ? *std::move(history) : history::RunHistory();
}

std::string MetricsFileIn(const std::filesystem::path& folder) { return (folder / history::kMetricsFile).string(); }

history::LoggedMetrics MetricsIn(const std::filesystem::path& folder) {
  const std::string path = MetricsFileIn(folder);
  const auto text = ReadFile(path, history::kMaxMetricsBytes);
  auto metrics =
      text ? history::LoggedMetrics::Parse(*text, path) : Result<history::LoggedMetrics>(history::LoggedMetrics());
  return metrics ? *std::move(metrics) : history::LoggedMetrics();
}

RunReporter::RunReporter(std::filesystem::path folder, const std::vector<jobs::MetricDefinition>& definitions,
                         Clock& clock, Logger log, MetricTargets targets,
                         std::function<void(const jobs::JobEvent&)> on_slow)
    : folder_(std::move(folder)),
      clock_(clock),
      log_(std::move(log)),
      targets_(std::move(targets)),
      on_slow_(std::move(on_slow)),
      started_(clock.Now()),
      next_look_(clock.Now()),
      next_report_(clock.Now()) {
  if (definitions.empty()) return;
  output_.emplace(definitions, MetricsIn(folder_), [this](const std::string& name, std::uint64_t step, double value) {
    if (targets_.events) targets_.events->Add(name, step, value);
    if (targets_.trackers) targets_.trackers->Add(name, step, value);
  });
}

RunReporter::~RunReporter() {
  WriteMetrics();
  WriteReport(HistoryIn(folder_));
}

void RunReporter::NoteEvent(const jobs::JobEvent& event) {
  if (job_.events.size() >= kMaxEvents) job_.events.erase(job_.events.begin());
  job_.events.push_back({.time = event.object.value("time", ""),
                         .what = event.object.value("event", ""),
                         .sentence = event.sentence.substr(0, event.sentence.find('\n'))});
  if (output_ && job_.events.back().what == "done") output_->TakeEnd(clock_.Now() - started_);
  Json line = event.object;
  line["sentence"] = event.sentence;
  Check(AppendLine(folder_ / "logs" / "events.jsonl", DumpJson(line) + "\n"));
}

void RunReporter::NoteLine(std::string_view line) {
  if (output_) output_->TakeLine(line);
}

void RunReporter::NoteStatus(const jobs::JobStatus& status) {
  history::JobSummary job = SummaryOf(status);
  job.events = std::move(job_.events);
  job.metrics = std::move(job_.metrics);
  job_ = std::move(job);
  if (!status.active()) {
    if (targets_.trackers) targets_.trackers->End(status);
    return WriteMetrics();
  }
  const TimePoint now = clock_.Now();
  if (now < next_look_) return;
  next_look_ = now + kLookInterval;
  const history::RunHistory history = HistoryIn(folder_);
  LookForStragglers(history);
  WriteMetrics();
  if (now < next_report_) return;
  next_report_ = now + kReportInterval;
  WriteReport(history);
}

void RunReporter::LookForStragglers(const history::RunHistory& history) {
  std::set<std::size_t> slow;
  for (std::size_t i = 0; i < history.ranks().size(); ++i) {
    const history::RankFigures& rank = history.ranks()[i];
    if (!rank.straggles) continue;
    slow.insert(i);
    if (slow_.contains(i)) continue;
    const std::string node = i < job_.ranks.size() ? job_.ranks[i].node : "";
    const jobs::JobEvent event{
        .level = jobs::JobEvent::Level::kWarning,
        .sentence = fmt::format("rank {}{} is slower than its peers: {:.1f} times their time of a step", i,
                                node.empty() ? "" : " on " + node, rank.slowness),
        .object = {{"event", "straggler"},
                   {"time", FormatIso8601(clock_.Wall())},
                   {"rank", i},
                   {"node", node},
                   {"slowness", rank.slowness}}};
    NoteEvent(event);
    on_slow_(event);
  }
  slow_ = std::move(slow);
}

void RunReporter::WriteMetrics() {
  if (!output_ || output_->metrics() == job_.metrics) return;
  job_.metrics = output_->metrics();
  Check(ReplaceFile(MetricsFileIn(folder_), AsBytes(DumpJson(job_.metrics.ToJson()))));
}

void RunReporter::WriteReport(const history::RunHistory& history) {
  const std::string html = history::ReportHtml(job_, history, FormatIso8601(clock_.Wall()));
  Check(ReplaceFile(ReportFileIn(folder_), AsBytes(html)));
}

void RunReporter::Check(const Status& done) {
  if (done || std::exchange(failed_, true)) return;
  log_.Warning("the report of the job cannot be written; the job goes on", {{"error", done.error()}});
}

}  // namespace millrace::cli
