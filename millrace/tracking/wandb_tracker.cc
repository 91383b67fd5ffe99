#include "millrace/tracking/wandb_tracker.h"

#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "millrace/tracking/sidecar/sidecar_files.h"

namespace millrace::tracking {
namespace {

std::string_view EndingName(RunEnding ending) {
  switch (ending) {
    case RunEnding::kFinished:
      return "finished";
    case RunEnding::kStopped:
      return "stopped";
    case RunEnding::kFailed:
      break;
  }
  return "failed";
}

}  // namespace

Json JsonOf(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

Result<std::unique_ptr<WandbTracker>> WandbTracker::Open(const WandbOptions& options, const TrackingOptions& shared,
                                                         const TrackedRun& run, Logger log) {
  std::string folder = options.folder;
  // Without a folder, WANDB_DIR decides.
  if (folder.empty() && !shared.env.contains("WANDB_DIR") && std::getenv("WANDB_DIR") == nullptr) {
    folder = shared.folder;
  }
  if (!folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
      return Fail(Code::kInvalidArgument,
                  "W&B: cannot make the folder {}: {}; set WANDB_DIR to a folder that can be written", folder,
                  error.message());
    }
  }
  Json parameters = Json::object();
  for (const auto& [name, value] : run.parameters) {
    std::visit([&](const auto& of) { parameters[name] = of; }, value);
  }
  const Json hello = {{"mode", options.mode},
                      {"job", run.name},
                      {"project", options.project},
                      {"entity", options.entity},
                      {"name", options.name.empty() ? run.name : options.name},
                      {"group", options.group},
                      {"tags", options.tags},
                      {"folder", folder},
                      {"id", run.id},
                      {"attempt", run.attempt},
                      {"resumed_from", run.resumed_from},
                      {"parameters", parameters}};
  Sidecar::Options sidecar{.name = "W&B", .argv = {shared.python, "-c", std::string(kWandbSidecar)}, .env = shared.env};
  auto started = MR_TRY(Sidecar::Start(std::move(sidecar), hello, log));
  const auto ready = [&](const char* key) { return JsonString(started->ready(), key).value_or(""); };
  log.Info("the run is recorded in W&B",
           {{"id", ready("id")}, {"mode", ready("mode")}, {"folder", ready("folder")}, {"url", ready("url")}});
  return std::unique_ptr<WandbTracker>(new WandbTracker(std::move(started)));
}

WandbTracker::~WandbTracker() {
  if (!ended_) End(RunEnding::kFailed, "");
}

void WandbTracker::AddMetrics(std::uint64_t step, const Metrics& metrics) {
  Json values = Json::object();
  for (const auto& [name, value] : metrics) values[name] = JsonOf(value);
  sidecar_->Send({{"event", "metrics"}, {"step", step}, {"metrics", std::move(values)}});
}

void WandbTracker::AddCheckpoint(const TrackedCheckpoint& checkpoint) {
  sidecar_->Send({{"event", "checkpoint"},
                  {"step", checkpoint.step},
                  {"tier", checkpoint.tier},
                  {"url", checkpoint.url},
                  {"bytes", checkpoint.bytes},
                  {"seconds", checkpoint.seconds},
                  {"error", checkpoint.error}});
}

void WandbTracker::End(RunEnding ending, std::string_view why) {
  ended_ = true;
  sidecar_->End({{"event", "end"}, {"ending", EndingName(ending)}, {"why", why}});
}

}  // namespace millrace::tracking
