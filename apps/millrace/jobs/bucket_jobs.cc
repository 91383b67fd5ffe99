#include "apps/millrace/jobs/bucket_jobs.h"

#include <utility>

#include "apps/common/output.h"
#include "apps/millrace/jobs/run_reporter.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/text.h"
#include "millrace/object/blocking.h"
#include "millrace/object/open/open.h"

namespace millrace::cli {
namespace {

/// Between two looks at a run's folder. More would show nothing new.
constexpr auto kStatusInterval = std::chrono::seconds(5);

Result<object::ReadLocation> FolderAt(object::Connection& connection, const std::string& url) {
  object::Location location = MR_TRY(object::Locate(connection, url));
  if (!location.key.empty() && !location.key.ends_with('/')) location.key += '/';
  return object::ReadLocation(location);
}

Json StatusJson(const jobs::JobStatus& status, std::string_view launcher) {
  Json json = status.ToJson();
  json["launcher"] = launcher;
  return json;
}

}  // namespace

bool IsRunFolder(std::string_view name) { return name.find('/') != std::string_view::npos; }

Result<RunFolderReader> RunFolderReader::Open(const Context& context, const std::string& url) {
  RunFolderReader reader;
  reader.connection_ = MR_TRY(context.Connect());
  reader.folder_ = MR_TRY(FolderAt(*reader.connection_, url));
  return reader;
}

Result<jobs::JobStatus> RunFolderReader::Status(const object::Call& call) {
  const Json json = MR_TRY(jobs::ReadRunStatus(folder_, call));
  std::string run = MR_TRY(JsonString(json, "run"));
  if (run != run_) log_.reset();
  run_ = std::move(run);
  return jobs::StatusInFolder(json, SystemClock().Wall());
}

Result<std::optional<std::string>> RunFolderReader::ReadObject(std::string_view name, std::uint64_t most_bytes,
                                                               const object::Call& call) {
  const auto found = MR_TRY(object::GetAll(*folder_.store, fmt::format("{}{}", folder_.key, name), most_bytes, call));
  return found ? std::optional(found->bytes) : std::nullopt;
}

Result<bool> RunFolderReader::PrintLog(const Context& context, const std::string& name) {
  if (!log_) log_ = std::make_unique<jobs::RunLogReader>(folder_, run_, name);
  const bool found = MR_TRY(log_->Poll([](std::string_view text) { Print("{}", text); }, {.stop = context.stop}));
  FlushOutput();
  return found;
}

Result<std::vector<jobs::JobStatus>> ListRunFolders(const Context& context, const std::string& url) {
  const auto connection = MR_TRY(context.Connect());
  const object::ReadLocation folder = MR_TRY(FolderAt(*connection, url));
  const object::Call call = {.stop = context.stop};
  std::vector<std::string> prefixes = {folder.key};  // it may be a run itself
  MR_TRY(object::ListAll(
      *folder.store, {.prefix = folder.key, .delimiter = "/"},
      [&](const object::ListPage& page) {
        prefixes.insert(prefixes.end(), page.common_prefixes.begin(), page.common_prefixes.end());
        return true;
      },
      call));
  std::vector<jobs::JobStatus> found;
  for (const std::string& prefix : prefixes) {
    const auto json = jobs::ReadRunStatus({folder.store, prefix}, call);
    const bool is_run = json || (json.error().code() != Code::kNotFound && json.error().code() != Code::kCorrupt);
    if (!is_run) continue;
    if (!json) return Fail(json.error());
    if (auto status = jobs::StatusInFolder(*json, SystemClock().Wall())) found.push_back(*std::move(status));
  }
  return found;
}

Result<jobs::JobStatus> PrintRunLog(const Context& context, const std::string& url, const std::string& name,
                                    bool follow) {
  RunFolderReader reader = MR_TRY(RunFolderReader::Open(context, url));
  for (;;) {
    // The status first: the log of a job that has ended is whole.
    jobs::JobStatus status = MR_TRY(reader.Status({.stop = context.stop}));
    const bool found = MR_TRY(reader.PrintLog(context, name));
    const bool goes_on = follow && status.active();
    if (!found && !goes_on) {
      return Fail(Code::kNotFound,
                  "{} has no log {} of the newest run of job \"{}\"; `millrace job status` names the ranks", url, name,
                  status.name);
    }
    if (!goes_on || !SystemClock().SleepFor(kStatusInterval, context.stop)) return status;
  }
}

void RunFolderKeeper::NoteStatus(const jobs::JobStatus& status, std::string_view launcher) {
  publisher_->NoteStatus(StatusJson(status, launcher));
}

Result<std::unique_ptr<RunFolderKeeper>> KeepRunFolder(const Context& context, const jobs::Spec& spec,
                                                       const jobs::JobFolder& folder, const jobs::JobStatus& status,
                                                       std::function<void(const Error&)> on_failure) {
  if (spec.log.url.empty()) return nullptr;
  Context quiet = context;
  // What fails is written again ten seconds later, and told once.
  quiet.globals.connect.max_attempts = 2;
  quiet.globals.log_level = LogLevel::kOff;
  auto connection = MR_TRY(quiet.Connect());
  object::Location location = MR_TRY(object::Locate(*connection, spec.log.url));
  if (!location.key.empty() && !location.key.ends_with('/')) location.key += '/';
  Random random(SystemEntropy());
  jobs::RunPublisher::Options options;
  options.folder.logs = folder.logs();
  options.folder.pages = {HistoryFileIn(folder.path()), MetricsFileIn(folder.path()), ReportFileIn(folder.path())};
  options.folder.run = jobs::NewRunName(SystemClock().Wall(), random);
  options.status = StatusJson(status, spec.run.launcher);
  options.on_failure = std::move(on_failure);
  auto publisher = std::make_unique<jobs::RunPublisher>(std::move(location), std::move(options));
  return std::make_unique<RunFolderKeeper>(std::move(connection), std::move(publisher));
}

}  // namespace millrace::cli
