#include "apps/millrace/watch/watched_job.h"

#include <algorithm>
#include <utility>

#include "apps/millrace/jobs/run_reporter.h"
#include "apps/millrace/jobs/schedulers/scheduled_jobs.h"
#include "millrace/base/files/files.h"
#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

constexpr std::uint64_t kMaxKeyBytes = 4096;
constexpr auto kLookPatience = std::chrono::seconds(10);  // for one look; the view says what is wrong, and looks again

/// Returns the name of the only job that runs on this machine.
Result<std::string> RunningJob() {
  std::vector<std::string> names;
  std::string list;
  for (const jobs::JobStatus& status : MR_TRY(ListJobsAnywhere())) {
    if (!status.active()) continue;
    names.push_back(status.name);
    list += (list.empty() ? "" : ", ") + status.name;
  }
  if (names.empty()) {
    return Fail(Code::kInvalidArgument, "no job runs on this machine; `millrace job list` shows those that ended");
  }
  if (names.size() > 1) return Fail(Code::kInvalidArgument, "{} jobs run: {}; name one", names.size(), list);
  return names.front();
}

Result<std::string> FirstKey(const std::string& file) {
  const std::string text = MR_TRY(ReadFile(file, kMaxKeyBytes));
  const std::string_view key = Trim(std::string_view(text).substr(0, text.find('\n')));
  if (key.empty())
    return Fail(Code::kInvalidArgument, "{} has no key in its first line; write the key alone into that line", file);
  return std::string(key);
}

}  // namespace

Result<JobWatcher> JobWatcher::Open(const Context& context, std::string target, const std::string& key_file) {
  if (target.starts_with("http://") || target.starts_with("https://")) {
    while (target.ends_with('/')) target.pop_back();
    if (target.ends_with("/metrics")) target.resize(target.size() - std::string_view("/metrics").size());
    JobWatcher watcher(context, Source::kServer, std::move(target));
    if (!key_file.empty()) watcher.key_ = MR_TRY(FirstKey(key_file));
    watcher.client_ = std::make_unique<http::Client>(
        http::Client::Options{.max_connections = 1, .loops = 1, .ca_bundle = context.globals.connect.ca_bundle});
    return watcher;
  }
  if (IsRunFolder(target)) {
    auto folder = MR_TRY(RunFolderReader::Open(context, target));
    JobWatcher watcher(context, Source::kStore, std::move(target));
    watcher.folder_.emplace(std::move(folder));
    return watcher;
  }
  if (target.empty()) target = MR_TRY(RunningJob());
  return JobWatcher(context, Source::kFolder, std::move(target));
}

Result<WatchedJob> JobWatcher::Read() {
  if (source_ == Source::kServer) return ReadServer();
  if (source_ == Source::kStore) return ReadStore();
  const jobs::JobStatus status = MR_TRY(ReadJobAnywhere(target_));
  const std::filesystem::path root = MR_TRY(jobs::StateRoot());
  const std::filesystem::path folder = root / "jobs" / status.name;
  WatchedJob watched{.job = SummaryOf(status), .history = HistoryIn(folder)};
  watched.job.metrics = MetricsIn(folder);
  return watched;
}

Result<WatchedJob> JobWatcher::ReadServer() {
  http::Request request{.url = target_ + "/history"};
  if (!key_.empty()) request.headers.Set("Authorization", "Bearer " + key_);
  const http::Response response =
      MR_TRY(client_->Send(std::move(request), {.max_collected = history::kMaxHistoryBytes},
                           {.stop = context_->stop, .deadline = Deadline::After(SystemClock(), kLookPatience)}));
  if (response.status == 401) {
    return Fail(Code::kPermissionDenied, "{} wants a key: give --key-file, a file with a key of log.metrics_key_file",
                target_);
  }
  if (response.status != 200) {
    return Fail(Code::kNotFound, "{} answers {}: it is not the log.metrics_listen of a job", target_, response.status);
  }
  WatchedJob watched;
  watched.history = MR_TRY(history::RunHistory::Parse(response.body, target_));
  watched.job.name = watched.history.facts().name;
  watched.job.state = "running";  // rank 0 answers
  const std::size_t starts = watched.history.starts().size();
  watched.job.restarts = starts > 1 ? static_cast<int>(starts) - 1 : 0;
  return watched;
}

Result<WatchedJob> JobWatcher::ReadStore() {
  const object::Call call{.stop = context_->stop, .deadline = Deadline::After(SystemClock(), kLookPatience)};
  const jobs::JobStatus status = MR_TRY(folder_->Status(call));
  WatchedJob watched{.job = SummaryOf(status)};
  if (const auto history = MR_TRY(folder_->ReadObject(history::kHistoryFile, history::kMaxHistoryBytes, call))) {
    watched.history = MR_TRY(history::RunHistory::Parse(*history, target_));
  }
  if (const auto metrics = MR_TRY(folder_->ReadObject(history::kMetricsFile, history::kMaxMetricsBytes, call))) {
    watched.job.metrics = MR_TRY(history::LoggedMetrics::Parse(*metrics, target_));
  }
  return watched;
}

}  // namespace millrace::cli
