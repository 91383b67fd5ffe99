// The keys of `run` in a job file: what starts the ranks, and where.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "millrace/base/clock.h"

namespace millrace::jobs {

/// Keys of the launcher slurm. Slurm's configuration decides where one is empty.
struct SlurmSpec {
  std::string partition, account, qos, constraint;
  std::optional<Duration> time;      ///< limit; whole minutes are asked for
  std::vector<std::string> exclude;  ///< nodes that must not be used
  int cpus_per_node = 0;             ///< 0: whole nodes
  std::vector<std::string> options;  ///< further options of sbatch, such as "--reservation=x"
  bool operator==(const SlurmSpec&) const = default;
};

struct RunSpec {
  std::string launcher = "local";
  int nodes = 1, processes_per_node = 1, max_restarts = 3;
  std::string machine;                   ///< a name of docs/machines or a file; empty: this machine
  std::optional<Duration> hang_timeout;  ///< nothing: auto, from the steps seen; whole milliseconds
  SlurmSpec slurm;
  bool operator==(const RunSpec&) const = default;
};

}  // namespace millrace::jobs
