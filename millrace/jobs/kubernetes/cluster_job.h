// The state of a job in a cluster: its phase with the reason in words, and the output of its supervisor.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/jobs/kubernetes/cluster_api.h"
#include "millrace/jobs/kubernetes/manifests.h"
#include "millrace/jobs/state.h"

namespace millrace::jobs {

/// The name of a job, and the cluster that has it.
struct ClusterJobName {
  std::string launcher;  ///< kubernetes, jobset or mpijob
  std::string context, space, name;
  std::string Id() const { return context + "/" + space + "/" + name; }
  /// Reverses Id(). A context may have slashes. Errors: kCorrupt.
  static Result<ClusterJobName> Parse(const std::string& launcher, const std::string& id);
};

struct ClusterJob {
  enum class Phase {
    kGone,    ///< deleted
    kHeld,    ///< suspended, without pods
    kWaits,   ///< for the pod that runs the supervisor
    kRuns,    ///< the supervisor's pod runs
    kLeaves,  ///< that pod is to leave
    kDone,
    kFailed,
  };
  Phase phase = Phase::kGone;
  std::string reason;          ///< why it waits or has failed, or for which other pod it waits; may be empty
  std::string supervisor_pod;  ///< the newest; empty: none
  bool has_log = false;        ///< that pod has started its container
  bool is_queued = false;      ///< a queue of Kueue decides when it runs
  std::string supervisor_uid;
};

/// Errors: those of the API.
Result<ClusterJob> FindClusterJob(ClusterApi& api, const ClusterJobName& job);

/// Makes the objects, and lets the job start unless a queue does that. If a step fails, nothing stays.
/// Errors: those of the API; kBusy if there is such a job that has not ended; kPreconditionFailed if an object of that
/// name is there that Millrace did not make.
Status CreateClusterJob(ClusterApi& api, const ClusterJobName& job, const std::vector<ClusterObject>& objects,
                        bool is_queued);
/// Makes the pods leave: ranks save. The job stays, suspended; but one of a queue, which would let it start again,
/// goes.
Status StopClusterJob(ClusterApi& api, const ClusterJobName& job, const ClusterJob& found);
/// Deletes the job; its pods, Service, ConfigMap and Secret go first.
Status DeleteClusterJob(ClusterApi& api, const ClusterJobName& job);

/// The form of the supervisor's output in a pod, which a reader of the pod's log takes apart:
///   [rank 3] text      what rank 3 wrote; "[rank 3!]" to standard error
///   [status] {…}       a JobStatus
///   [supervisor] text  a sentence
std::string RankLine(int rank, bool is_error, std::string_view text);
std::string StatusLine(const JobStatus& status);

/// The result of CollectLog().
struct CollectedLog {
  std::optional<JobStatus> status;  ///< the last
  bool of_new_pod = false;          ///< the supervisor runs in another pod than at the last call
};

/// Appends what the supervisor has written since the last call to the job's folder: logs/rank-R.out and .err,
/// logs/supervisor.log. Does nothing while another process does it.
Result<CollectedLog> CollectLog(ClusterApi& api, const ClusterJobName& job, const ClusterJob& found,
                                const std::filesystem::path& folder);

/// Changes what the supervisor last said to what is true now. `stop_requested`: by `millrace job stop`.
void ApplyClusterState(JobStatus& status, const ClusterJobName& job, const ClusterJob& found, bool stop_requested);

}  // namespace millrace::jobs
