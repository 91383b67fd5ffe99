#include "apps/millrace/jobs/job_trackers.h"

#include <utility>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/tracking/open.h"

namespace millrace::cli {
namespace {

constexpr std::string_view kIdFile = "tracked-run";
constexpr std::uint64_t kMaxId = 256;  // bytes

/// Returns the id of the run that goes on, or a new one.
Result<std::string> IdIn(const std::filesystem::path& folder, bool goes_on) {
  const std::filesystem::path file = folder / kIdFile;
  if (goes_on) {
    // A job may not have had trackers before.
    if (const auto known = ReadFile(file, kMaxId); known && !known->empty()) return *known;
  }
  std::string id = SecureHex(8);
  MR_TRY(WriteFileAtomic(file, AsBytes(id)));
  return id;
}

}  // namespace

Result<std::unique_ptr<JobTrackers>> JobTrackers::Open(const Context& context, const jobs::Spec& spec,
                                                       const std::filesystem::path& folder, bool goes_on) {
  const tracking::TrackingOptions options{.wandb = spec.log.wandb,
                                          .mlflow = spec.log.mlflow,
                                          .python = spec.log.python,
                                          .ca_bundle = context.globals.connect.ca_bundle,
                                          .folder = folder.string(),
                                          .env = spec.run.env};
  if (!options.any() || spec.run.command.empty()) return nullptr;
  tracking::TrackedRun run{.name = spec.name};
  run.id = MR_TRY(IdIn(folder, goes_on));
  run.parameters = {{"run.nodes", static_cast<double>(spec.run.nodes)},
                    {"run.processes_per_node", static_cast<double>(spec.run.processes_per_node)}};
  auto trackers = MR_TRY(tracking::OpenTrackers(options, std::move(run), SystemClock(), context.log()));
  return std::unique_ptr<JobTrackers>(new JobTrackers(std::move(trackers)));
}

void JobTrackers::Add(const std::string& name, std::uint64_t step, double value) {
  for (const auto& tracker : trackers_) tracker->AddMetrics(step, {{name, value}});
}

void JobTrackers::End(const jobs::JobStatus& status) {
  using tracking::RunEnding;
  const RunEnding ending = status.state == "done"          ? RunEnding::kFinished
                           : status.state == "interrupted" ? RunEnding::kStopped
                                                           : RunEnding::kFailed;
  const std::string why = ending == RunEnding::kFailed ? status.message.substr(0, status.message.find('\n')) : "";
  for (const auto& tracker : trackers_) tracker->End(ending, why);
}

}  // namespace millrace::cli
