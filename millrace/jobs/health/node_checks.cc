#include "millrace/jobs/health/node_checks.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "millrace/jobs/health/gpu_checks.h"
#include "millrace/jobs/health/store_checks.h"

namespace millrace::jobs {
namespace {

std::filesystem::path FolderOf(const HealthOptions& options) {
  if (!options.folder.empty()) return options.folder;
  const char* configured = std::getenv("TMPDIR");
  return configured != nullptr && *configured != '\0' ? configured : "/tmp";
}

}  // namespace

Json HealthOptions::ToJson() const {
  return {{"checks", checks},       {"folder", folder}, {"store", store},
          {"ca_bundle", ca_bundle}, {"spot", spot},     {"gpus", gpus}};
}

Result<HealthOptions> HealthOptions::FromJson(const Json& json) {
  HealthOptions options;
  options.folder = MR_TRY(JsonString(json, "folder"));
  options.store = MR_TRY(JsonString(json, "store"));
  options.ca_bundle = MR_TRY(JsonString(json, "ca_bundle"));
  options.spot = MR_TRY(JsonString(json, "spot"));
  options.gpus = static_cast<int>(MR_TRY(JsonInt(json, "gpus")));
  options.checks.clear();
  const Json* checks = JsonFind(json, "checks");
  if (checks == nullptr || !checks->is_array()) return Fail(Code::kInvalidArgument, "\"checks\" should be a list");
  for (const Json& check : *checks) {
    if (!check.is_string()) return Fail(Code::kInvalidArgument, "the name of a check should be a text");
    options.checks.push_back(check.get<std::string>());
  }
  return options;
}

Findings CheckNode(const HealthOptions& options, const MachinePaths& paths, Clock& clock, std::stop_token stop) {
  const auto wanted = [&](std::string_view check) {
    return std::ranges::find(options.checks, check) != options.checks.end();
  };
  Findings findings;
  StoreFindings store;
  if (!options.passive && (wanted("clock") || wanted("network"))) {
    store = CheckStoreEndpoint({.url = options.store, .ca_bundle = options.ca_bundle}, clock, stop);
    if (wanted("clock")) findings.push_back(store.clock);
  }
  if (wanted("disk")) findings.push_back(CheckNodeDisk(FolderOf(options), options.passive));
  if (wanted("memory")) findings.push_back(CheckNodeMemory(paths, options.passive));
  if (!options.passive && wanted("network")) findings.push_back(store.network);
  if (!options.passive && wanted("cpu")) findings.push_back(CheckNodeCpu());
  if (wanted("shm")) findings.push_back(CheckSharedMemory(paths.shared_memory));
  if (wanted("gpu")) std::ranges::move(CheckNodeGpus(paths, options.gpus), std::back_inserter(findings));
  return findings;
}

}  // namespace millrace::jobs
