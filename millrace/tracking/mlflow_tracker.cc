#include "millrace/tracking/mlflow_tracker.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/tracking/mlflow_names.h"

namespace millrace::tracking {
namespace {

constexpr auto kOpenPatience = std::chrono::seconds(30), kEndPatience = std::chrono::seconds(30);
constexpr auto kSendInterval = std::chrono::seconds(1);
constexpr std::string_view kRunTag = "millrace.run";
constexpr std::size_t kMaxTagValue = 5000;  // bytes; MLflow 1 takes 5,000, later ones 8,000

Json Tag(std::string_view key, std::string_view value) {
  return {{"key", MlflowKey(key)}, {"value", CutText(value, kMaxTagValue)}};
}

/// Returns a number in the JSON of protocol buffers, where NaN and infinities are texts.
Json ProtoNumber(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

std::string TextOf(const std::variant<double, std::string>& value) {
  if (const auto* number = std::get_if<double>(&value)) return fmt::format("{}", *number);
  return std::get<std::string>(value);
}

/// Returns the member of the member `outer` of an answer.
Result<std::string> Text(const Json& answer, std::string_view outer, std::string_view key) {
  const Json* object = JsonFind(answer, outer);
  return JsonString(object != nullptr ? *object : Json::object(), key);
}

std::string_view StatusOf(RunEnding ending) {
  switch (ending) {
    case RunEnding::kFinished:
      return "FINISHED";
    case RunEnding::kStopped:
      return "KILLED";
    case RunEnding::kFailed:
      break;
  }
  return "FAILED";
}

}  // namespace

Result<std::unique_ptr<MlflowTracker>> MlflowTracker::Open(const MlflowOptions& options, const TrackingOptions& shared,
                                                           const TrackedRun& run, const Environment& environment,
                                                           Clock& clock, Logger log) {
  MlflowAccess access = MR_TRY(MlflowAccess::Find(options.url, shared.ca_bundle, environment));
  const std::string url = access.url;
  std::unique_ptr<MlflowTracker> tracker(new MlflowTracker(std::move(access), clock, std::move(log)));
  const Deadline deadline = Deadline::After(clock, kOpenPatience);
  MR_TRY(tracker->FindRun(options, run, environment, deadline));
  MR_TRY(tracker->LogParameters(run.parameters, deadline));
  tracker->log_.Info("the run is logged in MLflow", {{"url", url}, {"run_id", tracker->run_id_}});
  tracker->thread_.Spawn("mlflow", [self = tracker.get()](std::stop_token) { self->Run(); });
  return tracker;
}

MlflowTracker::~MlflowTracker() {
  if (!end_ && !run_id_.empty()) End(RunEnding::kFailed, "");
}

/// Returns the id of an experiment, which it makes if there is none.
Result<std::string> MlflowTracker::ExperimentNamed(const std::string& name, Deadline deadline) {
  const std::string by_name = "experiments/get-by-name?experiment_name=" + PercentEncode(name, /*keep_slash=*/false);
  auto found = client_.Call(by_name, std::nullopt, deadline);
  if (!found && found.error().code() == Code::kNotFound) {
    const auto made = client_.Call("experiments/create", Json::object({{"name", name}}), deadline);
    if (made) return JsonString(*made, "experiment_id");
    if (made.error().code() != Code::kAlreadyExists) return Fail(made.error());
    found = client_.Call(by_name, std::nullopt, deadline);  // another run has just made it
  }
  const Json answer = MR_TRY(std::move(found));
  if (Text(answer, "experiment", "lifecycle_stage").value_or("active") != "active") {
    return Fail(Code::kPreconditionFailed,
                "MLflow: the experiment \"{}\" was deleted; restore it there, or name another in log.mlflow.experiment",
                name);
  }
  return Text(answer, "experiment", "experiment_id");
}

/// Finds the run of earlier attempts, or makes one.
Status MlflowTracker::FindRun(const MlflowOptions& options, const TrackedRun& run, const Environment& environment,
                              Deadline deadline) {
  const auto get = [&](const char* name) { return environment(name).value_or(""); };
  std::string found = get("MLFLOW_RUN_ID");
  std::string experiment = options.experiment.empty() ? get("MLFLOW_EXPERIMENT_ID") : "";
  if (found.empty()) {
    std::string name = options.experiment.empty() ? get("MLFLOW_EXPERIMENT_NAME") : options.experiment;
    if (name.empty()) name = run.name;
    if (experiment.empty()) experiment = MR_TRY(ExperimentNamed(name, deadline));
    const Json answer = MR_TRY(client_.Call("runs/search",
                                            Json{{"experiment_ids", Json::array({experiment})},
                                                 {"filter", fmt::format("tags.`{}` = '{}'", kRunTag, run.id)},
                                                 {"run_view_type", "ACTIVE_ONLY"},
                                                 {"max_results", 1}},
                                            deadline));
    const Json* runs = JsonFind(answer, "runs");
    if (runs != nullptr && runs->is_array() && !runs->empty()) found = MR_TRY(Text(runs->front(), "info", "run_id"));
  }
  if (found.empty()) return CreateRun(experiment, options, run, deadline);
  MR_TRY(client_.Call("runs/update", Json{{"run_id", found}, {"status", "RUNNING"}}, deadline));
  run_id_ = found;
  const Json tags = Json::array({Tag("millrace.attempt", std::to_string(run.attempt)),
                                 Tag("millrace.resumed_from", std::to_string(run.resumed_from))});
  MR_TRY(client_.Call("runs/log-batch", Json{{"run_id", run_id_}, {"tags", tags}}, deadline));
  return {};
}

Status MlflowTracker::CreateRun(const std::string& experiment, const MlflowOptions& options, const TrackedRun& run,
                                Deadline deadline) {
  const std::string& name = options.run_name.empty() ? run.name : options.run_name;
  const char* user = ::getenv("USER");
  Json tags = Json::array({Tag(kRunTag, run.id), Tag("mlflow.runName", name), Tag("mlflow.source.name", "millrace"),
                           Tag("millrace.attempt", std::to_string(run.attempt))});
  if (user != nullptr) tags.push_back(Tag("mlflow.user", user));
  for (const auto& [key, value] : options.tags) tags.push_back(Tag(key, value));
  const Json made = MR_TRY(client_.Call(
      "runs/create",
      Json{{"experiment_id", experiment}, {"run_name", name}, {"start_time", NowMs()}, {"tags", std::move(tags)}},
      deadline));
  const Json* object = JsonFind(made, "run");
  run_id_ = MR_TRY(Text(object != nullptr ? *object : Json::object(), "info", "run_id"));
  return {};
}

Status MlflowTracker::LogParameters(const Parameters& parameters, Deadline deadline) {
  const Json answer = MR_TRY(client_.Call("runs/get?run_id=" + run_id_, std::nullopt, deadline));
  std::map<std::string, std::string> known;
  const Json* run = JsonFind(answer, "run");
  const Json* data = run != nullptr ? JsonFind(*run, "data") : nullptr;
  const Json* params = data != nullptr ? JsonFind(*data, "params") : nullptr;
  for (const Json& param : params != nullptr ? *params : Json::array()) {
    known[JsonString(param, "key").value_or("")] = JsonString(param, "value").value_or("");
  }
  std::vector<std::pair<std::string, std::string>> fresh;
  std::map<std::string, std::string> taken;  // two names may become one key: the first one has it
  Json changed = Json::array();
  for (const auto& [name, value] : parameters) {
    const std::string key = MlflowKey(name), text = TextOf(value);
    if (!taken.emplace(key, text).second) continue;
    const auto before = known.find(key);
    if (before == known.end()) {
      fresh.emplace_back(key, text);
    } else if (!text.starts_with(before->second)) {  // a long value was cut
      changed.push_back(Tag("changed." + key, text));
    }
  }
  MR_TRY(LogNewParameters(fresh, deadline));
  for (std::size_t i = 0; i < changed.size(); i += kMaxMlflowParameters) {
    const auto first = changed.begin() + static_cast<std::ptrdiff_t>(i);
    const auto last = changed.begin() + static_cast<std::ptrdiff_t>(std::min(i + kMaxMlflowParameters, changed.size()));
    MR_TRY(client_.Call("runs/log-batch", Json{{"run_id", run_id_}, {"tags", Json::array_t(first, last)}}, deadline));
  }
  return {};
}

/// Logs parameters that the run does not have. If the server is too old for long values, cuts them.
Status MlflowTracker::LogNewParameters(const std::vector<std::pair<std::string, std::string>>& fresh,
                                       Deadline deadline) {
  std::size_t limit = 0;  // index
  for (std::size_t i = 0; i < fresh.size();) {
    Json params = Json::array();
    bool shorter = false;  // whether a lower limit would change this batch
    const std::size_t end = std::min(i + kMaxMlflowParameters, fresh.size());
    const bool has_next = limit + 1 < std::size(kMlflowValueLimits);
    for (std::size_t j = i; j < end; ++j) {
      const auto& [key, value] = fresh[j];
      params.push_back({{"key", key}, {"value", CutText(value, kMlflowValueLimits[limit])}});
      shorter = shorter || (has_next && value.size() > kMlflowValueLimits[limit + 1]);
    }
    const auto logged = client_.Call("runs/log-batch", Json{{"run_id", run_id_}, {"params", params}}, deadline);
    if (!logged && logged.error().code() == Code::kInvalidArgument && shorter) {
      ++limit;
      continue;
    }
    if (!logged) return Fail(logged.error());
    i = end;
  }
  return {};
}

std::int64_t MlflowTracker::NowMs() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(clock_.Wall().time_since_epoch()).count();
}

void MlflowTracker::Queue(Entry entry) {
  if (queue_.TryPush(entry)) return;
  if (dropped_++ == 0) log_.Warning("MLflow takes metrics too slowly; some steps are dropped");
}

void MlflowTracker::AddMetrics(std::uint64_t step, const Metrics& metrics) {
  Entry entry;
  const std::int64_t now = NowMs();
  for (const auto& [name, value] : metrics) {
    entry.metrics.push_back(
        {{"key", MlflowKey(name)}, {"value", ProtoNumber(value)}, {"timestamp", now}, {"step", step}});
  }
  Queue(std::move(entry));
}

void MlflowTracker::AddCheckpoint(const TrackedCheckpoint& checkpoint) {
  Entry entry;
  if (!checkpoint.error.empty()) {
    entry.tags.push_back(Tag("checkpoint.error", checkpoint.error));
    return Queue(std::move(entry));
  }
  const std::int64_t now = NowMs();
  const auto add = [&](const char* key, double value) {
    entry.metrics.push_back({{"key", key}, {"value", value}, {"timestamp", now}, {"step", checkpoint.step}});
  };
  add("checkpoint/bytes", static_cast<double>(checkpoint.bytes));
  add("checkpoint/seconds", checkpoint.seconds);
  entry.tags.push_back(Tag("checkpoint.step", std::to_string(checkpoint.step)));
  entry.tags.push_back(Tag("checkpoint.tier", checkpoint.tier));
  if (!checkpoint.url.empty()) entry.tags.push_back(Tag("checkpoint.url", checkpoint.url));
  Queue(std::move(entry));
}

void MlflowTracker::End(RunEnding ending, std::string_view why) {
  end_.emplace(ending, why);
  give_up_ = clock_.Now() + kEndPatience;
  queue_.Close();
  ending_.request_stop();
  thread_.Join();
  if (dropped_ > 0 || lost_ > 0) {
    log_.Warning("MLflow misses events", {{"dropped", dropped_.load()}, {"not_taken", lost_.load()}});
  }
}

/// Sends what is queued: at once, and then at most once per interval, in requests of as much as MLflow takes.
void MlflowTracker::Run() {
  while (auto entry = queue_.Pop()) {
    std::map<std::string, Json> tags;  // the last value of each counts
    const auto add_tags = [&](const Json& more) {
      for (const Json& tag : more) tags[tag["key"]] = tag;
    };
    add_tags(entry->tags);
    // All entries of one call fit: a call logs some dozen metrics.
    std::optional<Entry> next;
    while (entry->metrics.size() < kMaxMlflowMetrics / 2 && (next = queue_.TryPop())) {
      for (Json& metric : next->metrics) entry->metrics.push_back(std::move(metric));
      add_tags(next->tags);
    }
    entry->tags = Json::array();
    for (auto& [key, tag] : tags) entry->tags.push_back(std::move(tag));
    for (std::size_t i = 0; i < std::max<std::size_t>(entry->metrics.size(), 1); i += kMaxMlflowMetrics) {
      const auto first = entry->metrics.begin() + static_cast<std::ptrdiff_t>(i);
      const auto size = std::min(kMaxMlflowMetrics, entry->metrics.size() - i);
      SendBatch({.metrics = Json::array_t(first, first + static_cast<std::ptrdiff_t>(size)),
                 .tags = i == 0 ? entry->tags : Json::array()});
    }
    clock_.SleepFor(kSendInterval, ending_.get_token());
  }
  SetEnd();
}

Deadline MlflowTracker::SendDeadline() const { return Deadline(give_up_.load()); }

void MlflowTracker::SendBatch(const Entry& entry) {
  const Json body = {{"run_id", run_id_}, {"metrics", entry.metrics}, {"tags", entry.tags}};
  // While the run goes on, a server may be away for as long as it likes: the queue bounds what waits.
  auto sent = client_.Call("runs/log-batch", body, SendDeadline(), ending_.get_token());
  if (!sent && sent.error().code() == Code::kUnavailable && ending_.stop_requested()) {
    sent = client_.Call("runs/log-batch", body, SendDeadline());  // End() woke it from a pause
  }
  if (sent) return;
  lost_ += entry.metrics.size() + entry.tags.size();
  if (!std::exchange(failed_, true)) {
    log_.Warning("MLflow does not take the metrics of the run; the run goes on", {{"error", sent.error()}});
  }
}

void MlflowTracker::SetEnd() {
  const auto& [ending, why] = *end_;
  const auto told = [&]() -> Status {
    if (!why.empty()) {
      const Json tags = Json::array({Tag("millrace.error", why)});
      MR_TRY(client_.Call("runs/log-batch", Json{{"run_id", run_id_}, {"tags", tags}}, SendDeadline()));
    }
    MR_TRY(client_.Call("runs/update", Json{{"run_id", run_id_}, {"status", StatusOf(ending)}, {"end_time", NowMs()}},
                        SendDeadline()));
    return {};
  }();
  if (!told) log_.Warning("MLflow does not know how the run ended", {{"error", told.error()}});
}

}  // namespace millrace::tracking
