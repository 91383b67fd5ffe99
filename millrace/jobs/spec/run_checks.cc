#include "millrace/jobs/spec/run_checks.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace millrace::jobs {
namespace {

using config::Node;

/// Values become lines of a batch script.
bool HasControlCharacter(std::string_view text) {
  return std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

Status CheckSlurm(const Node& node, const SlurmSpec& slurm) {
  for (const auto& [key, value] : {std::pair("partition", &slurm.partition), std::pair("account", &slurm.account),
                                   std::pair("qos", &slurm.qos), std::pair("constraint", &slurm.constraint)}) {
    if (HasControlCharacter(*value)) return Fail(node[key].Invalid("should be one line"));
  }
  for (const auto& [key, values] : {std::pair("exclude", &slurm.exclude), std::pair("slurm_options", &slurm.options)}) {
    if (std::ranges::any_of(*values, HasControlCharacter)) return Fail(node[key].Invalid("should have one line each"));
  }
  const bool are_options = std::ranges::all_of(slurm.options, [](const auto& o) { return o.starts_with("-"); });
  if (!are_options) return Fail(node["slurm_options"].Invalid("should be options of sbatch, such as --reservation=x"));
  return {};
}

}  // namespace

Status CheckRun(const Node& node, const RunSpec& run, SpecPurpose purpose) {
  MR_TRY(CheckSlurm(node, run.slurm));
  if (purpose == SpecPurpose::kPlan || run.nodes == 1 || run.launcher != "local") return {};
  return Fail(node["nodes"].Invalid("should be 1: the launcher local starts ranks on this machine only"));
}

}  // namespace millrace::jobs
