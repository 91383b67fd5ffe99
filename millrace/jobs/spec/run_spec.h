// The keys of `run` in a job file: what starts the ranks, and where.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/jobs/health/health_checks.h"

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

/// Keys of the launchers kubernetes, jobset and mpijob. Names are those of Kubernetes.
struct KubernetesSpec {
  std::string context;                           ///< of the kubeconfig; empty: the current one
  std::string space;                             ///< the key `namespace`; empty: the context's
  std::string image;                             ///< has millrace; required
  std::string image_pull_policy;                 ///< empty: as Kubernetes decides
  std::vector<std::string> image_pull_secrets;   ///< names of Secrets
  std::map<std::string, std::string> resources;  ///< of each pod, requested and limited: {"nvidia.com/gpu": "8"}
  std::map<std::string, std::string> node_selector, labels, annotations;
  Json tolerations = Json::array(), volumes = Json::array();
  std::string mounts_secret;  ///< of run.mounts and checkpoint.url, which the CSI driver mounts for run.command
  std::string priority;       ///< a PriorityClass
  std::string service_account;
  std::vector<std::string> env_from;  ///< Secrets whose entries become variables: credentials
  std::string queue;                  ///< of Kueue
  std::uint64_t shared_memory = 0;    ///< bytes of /dev/shm; 0: as the container runtime decides
  int user = 1000;                    ///< that the containers run as
  bool operator==(const KubernetesSpec&) const = default;
};

/// The numbers of ranks that a job may go on with.
struct ElasticSpec {
  int min = 1;
  std::optional<int> max;  ///< nothing: nodes × processes_per_node
  bool operator==(const ElasticSpec&) const = default;
};

struct RunSpec {
  std::string launcher = "local";
  int nodes = 1, processes_per_node = 1, max_restarts = 3;
  std::string machine;                        ///< a name of docs/machines or a file; empty: this machine
  std::optional<Duration> hang_timeout;       ///< nothing: auto, from the steps seen; whole milliseconds
  std::vector<std::string> command;           ///< a program that trains in place of Millrace's engine; empty: none
  std::string directory;                      ///< where `command` runs; empty: where the launcher does
  std::string source;                         ///< its code: a folder, or the URL of its archive; empty: none
  std::map<std::string, std::string> env;     ///< for every rank
  std::map<std::string, std::string> mounts;  ///< of `command`: URLs, and where they are mounted: "/path" or "/path:ro"
  std::vector<std::string> health_checks = AllHealthChecks();  ///< before each attempt
  int spares = 0;                                              ///< nodes beyond `nodes` that wait
  bool spot = false;                                           ///< EC2 may take the machines away
  std::optional<ElasticSpec> elastic;                          ///< nothing: always all ranks
  SlurmSpec slurm;
  SshSpec ssh;
  KubernetesSpec kubernetes;
  /// Returns whether pods run the ranks.
  bool in_pods() const { return launcher == "kubernetes" || launcher == "jobset" || launcher == "mpijob"; }
  /// Returns whether ssh reaches the machines of the ranks.
  bool is_over_ssh() const { return launcher == "ssh" || launcher == "mpijob"; }
  bool operator==(const RunSpec&) const = default;
};

}  // namespace millrace::jobs
