#include "millrace/jobs/sweep/sweep_state.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cmath>
#include <system_error>
#include <utility>

namespace millrace::jobs {
namespace {

constexpr std::uint64_t kMaxSweepBytes = 64 * kMiB;
constexpr int kSweepVersion = 1;
constexpr const char* kSweepFile = "sweep.json";
constexpr const char* kStopFile = "stop";

Json RunToJson(const SweepRun& run) {
  Json values = Json::array();
  for (const auto& [key, value] : run.values) values.push_back({key, value});
  Json json = {{"name", run.name},
               {"values", std::move(values)},
               {"state", run.state},
               {"reason", run.reason},
               {"rungs_passed", run.rungs_passed}};
  if (run.step) json["step"] = *run.step;
  if (run.value) json["value"] = *run.value;
  return json;
}

Result<SweepRun> RunFromJson(const Json& json, std::string_view what) {
  SweepRun run;
  run.name = MR_TRY(JsonString(json, "name"));
  run.state = MR_TRY(JsonString(json, "state"));
  run.reason = MR_TRY(JsonString(json, "reason"));
  run.rungs_passed = static_cast<int>(MR_TRY(JsonInt(json, "rungs_passed")));
  if (JsonFind(json, "step") != nullptr) run.step = MR_TRY(JsonUint(json, "step"));
  if (const Json* value = JsonFind(json, "value"); value != nullptr && value->is_number()) {
    run.value = value->get<double>();
  }
  const Json* values = JsonFind(json, "values");
  if (values == nullptr || !values->is_array()) return Fail(Code::kCorrupt, "{}: a run without values", what);
  for (const Json& pair : *values) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
      return Fail(Code::kCorrupt, "{}: a value is not a pair of texts", what);
    }
    run.values.emplace_back(pair[0].get<std::string>(), pair[1].get<std::string>());
  }
  return run;
}

}  // namespace

std::optional<std::size_t> SweepState::Best() const {
  std::optional<std::size_t> best;
  const auto is_better = [&](const SweepRun& a, const SweepRun& b) {
    const bool a_done = a.state == "done", b_done = b.state == "done";
    if (a_done != b_done) return a_done;
    return lower_is_better ? *a.value < *b.value : *a.value > *b.value;
  };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].value || !std::isfinite(*runs[i].value)) continue;
    if (!best || is_better(runs[i], runs[*best])) best = i;
  }
  return best;
}

Json SweepState::ToJson() const {
  Json list = Json::array();
  for (const SweepRun& run : runs) list.push_back(RunToJson(run));
  return {{"version", kSweepVersion}, {"name", name},     {"job", job},
          {"source", source},         {"metric", metric}, {"lower_is_better", lower_is_better},
          {"runs", std::move(list)}};
}

Result<SweepState> SweepState::FromJson(const Json& json, std::string_view what) {
  if (MR_TRY(JsonInt(json, "version")) != kSweepVersion) {
    return Fail(Code::kCorrupt, "{} is of another version of Millrace", what);
  }
  SweepState state;
  state.name = MR_TRY(JsonString(json, "name"));
  state.job = MR_TRY(JsonString(json, "job"));
  state.source = MR_TRY(JsonString(json, "source"));
  state.metric = MR_TRY(JsonString(json, "metric"));
  const Json* lower = JsonFind(json, "lower_is_better");
  state.lower_is_better = lower == nullptr || !lower->is_boolean() || lower->get<bool>();
  const Json* runs = JsonFind(json, "runs");
  if (runs == nullptr || !runs->is_array()) return Fail(Code::kCorrupt, "{} has no runs", what);
  for (const Json& run : *runs) state.runs.push_back(MR_TRY(RunFromJson(run, what)));
  return state;
}

std::filesystem::path SweepFolder(const std::filesystem::path& root, std::string_view name) {
  return root / "sweeps" / name;
}

Result<SweepState> ReadSweep(const std::filesystem::path& root, std::string_view name) {
  const std::filesystem::path path = SweepFolder(root, name) / kSweepFile;
  if (name.find('/') != name.npos || !std::filesystem::exists(path)) {
    return Fail(Code::kNotFound,
                "no sweep \"{}\" was started on this machine by this user; start it here, or ask where it was started",
                name);
  }
  const std::string text = MR_TRY(ReadFile(path, kMaxSweepBytes));
  const Json json = MR_TRY(ParseJson(text, path.string()));
  return SweepState::FromJson(json, path.string());
}

Status WriteSweep(const std::filesystem::path& root, const SweepState& state) {
  return WriteFileAtomic(SweepFolder(root, state.name) / kSweepFile, AsBytes(DumpJson(state.ToJson())), 0600);
}

Result<UniqueFd> LockSweep(const std::filesystem::path& root, std::string_view name) {
  const std::filesystem::path folder = SweepFolder(root, name);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Fail(Code::kIo, "cannot make {}: {}", folder.string(), error.message());
  UniqueFd lock = MR_TRY(OpenFile(folder / "lock", O_RDWR | O_CREAT, 0600));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return Fail(Code::kBusy, "sweep \"{}\" runs already: `millrace job sweep status {}`", name, name);
  }
  return lock;
}

Status SetSweepStop(const std::filesystem::path& root, std::string_view name, bool stop) {
  const std::filesystem::path path = SweepFolder(root, name) / kStopFile;
  if (stop) return WriteFileAtomic(path, {}, 0600);
  std::error_code error;
  std::filesystem::remove(path, error);
  if (error) return Fail(Code::kIo, "cannot remove {}: {}", path.string(), error.message());
  return {};
}

bool IsSweepStopped(const std::filesystem::path& root, std::string_view name) {
  std::error_code error;
  return std::filesystem::exists(SweepFolder(root, name) / kStopFile, error);
}

}  // namespace millrace::jobs
