// A sweep on this machine: what it varies, and what became of its runs.
//
//   ROOT/sweeps/NAME/sweep.json   replaced as a whole
//                    lock         held (flock) by the process that starts the runs
//                    stop         made by `sweep stop`: no further run is started
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/jobs/sweep/search_space.h"

namespace millrace::jobs {

/// One run of a sweep: a job of its own.
struct SweepRun {
  std::string name;
  RunValues values;
  /// waiting | running | done | stopped (early, by the metric) | failed | interrupted. The last two, like `waiting`,
  /// are started when the sweep goes on.
  std::string state = "waiting";
  std::string reason;                 ///< why it was stopped or failed
  std::optional<std::uint64_t> step;  ///< that it has come to
  std::optional<double> value;        ///< of the metric, the latest
  int rungs_passed = 0;               ///< of ASHA

  bool waits() const { return state == "waiting" || state == "failed" || state == "interrupted"; }
  bool operator==(const SweepRun&) const = default;
};

/// Plain data.
struct SweepState {
  std::string name;
  std::string job;     ///< the text of the job file that all runs have in common
  std::string source;  ///< the archive of run.source that all runs have; empty: none
  std::string metric;  ///< empty: runs are not compared
  bool lower_is_better = true;
  std::vector<SweepRun> runs;

  /// Returns the index of the best run that came to its end; else of the best that has a value; nothing without one.
  std::optional<std::size_t> Best() const;
  Json ToJson() const;
  /// Errors: kCorrupt.
  static Result<SweepState> FromJson(const Json& json, std::string_view what);
  bool operator==(const SweepState&) const = default;
};

/// Returns the folder of a sweep. `root` is the state folder.
std::filesystem::path SweepFolder(const std::filesystem::path& root, std::string_view name);
/// Errors: kNotFound if there is no such sweep; kCorrupt.
Result<SweepState> ReadSweep(const std::filesystem::path& root, std::string_view name);
Status WriteSweep(const std::filesystem::path& root, const SweepState& state);
/// Makes the folder and takes its lock, which the descriptor holds. Errors: kBusy while another process has it.
Result<UniqueFd> LockSweep(const std::filesystem::path& root, std::string_view name);
/// Makes or removes the file `stop`.
Status SetSweepStop(const std::filesystem::path& root, std::string_view name, bool stop);
bool IsSweepStopped(const std::filesystem::path& root, std::string_view name);

}  // namespace millrace::jobs
