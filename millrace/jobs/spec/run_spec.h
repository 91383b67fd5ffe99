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

/// Keys of the launcher ssh.
struct SshSpec {
  std::vector<std::string> hosts;    ///< as ssh takes them; after Parse(), exactly those that are used
  std::string hostfile;              ///< file of an MPI program; after Parse(), empty: its hosts are in `hosts`
  std::vector<std::string> options;  ///< of ssh, one word each, such as "-p2222"
  std::string millrace_path;         ///< of millrace on the hosts; empty: as here
  std::optional<Duration> connect_timeout = std::chrono::minutes(10);  ///< for hosts that are away; nothing: none
  bool operator==(const SshSpec&) const = default;
};

struct RunSpec {
  std::string launcher = "local";
  int nodes = 1, processes_per_node = 1, max_restarts = 3;
  std::string machine;                   ///< a name of docs/machines or a file; empty: this machine
  std::optional<Duration> hang_timeout;  ///< nothing: auto, from the steps seen; whole milliseconds
  SlurmSpec slurm;
  SshSpec ssh;
  bool operator==(const RunSpec&) const = default;
};

}  // namespace millrace::jobs
