// Slurm through its commands: sbatch, scontrol, scancel, srun.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/jobs/launchers/remote_launcher.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/state.h"

namespace millrace::jobs {

/// The state of a job in Slurm.
struct SlurmJob {
  std::string id;
  std::string state;   ///< "PENDING", "RUNNING", "CANCELLED", …; empty: Slurm has forgotten the job
  std::string reason;  ///< why it waits or has ended; may be empty
  std::string nodes;   ///< "n[1-4]"; empty while it waits
  int restarts = 0;

  bool waits() const;   ///< for nodes
  bool runs() const;    ///< has nodes
  bool leaves() const;  ///< its nodes: it ends, or is about to wait again
};

/// The contents of a batch script.
struct BatchOptions {
  std::string millrace;  ///< the path of `millrace` on the nodes
  std::string job_file;  ///< readable on the first node
  std::string output;    ///< of the supervisor; readable by whoever asks
  /// The elements of a job array, as in "1-4,7%2"; empty: one job. In `job_file`, "%a" is an element's number then.
  std::string array;
};

/// Returns the script that runs the supervisor of a job on the first of its nodes. Slurm sends it SIGTERM before the
/// time limit, early enough to save a checkpoint.
/// REQUIRES: spec.run.launcher is "slurm".
std::string RenderBatchScript(const Spec& spec, const BatchOptions& options);

/// Submits a script and returns the job's id. `env` is added to the environment, which the job inherits.
/// Errors: kNotFound without sbatch; kInvalidArgument if Slurm refuses it (its reason is on standard error).
Result<std::string> SubmitBatch(const std::string& script, const std::map<std::string, std::string>& env);
/// Errors: kNotFound without scontrol; kUnavailable if the controller does not answer.
Result<SlurmJob> FindSlurmJob(const std::string& id);
/// Changes a status to what Slurm says of the job: it waits, has nodes, leaves them, or is gone. `stop_requested`: by
/// `millrace job stop`.
void ApplySlurmState(JobStatus& status, const SlurmJob& found, bool stop_requested);
/// Ends a job that waits, or kills one that runs.
Status CancelSlurmJob(const std::string& id);
/// Sends SIGTERM to the batch script alone, so that the supervisor can let the ranks save.
Status TerminateBatch(const std::string& id);
/// Puts a job that runs back into the queue. It starts again from the top.
Status RequeueSlurmJob(const std::string& id);

/// Asks Slurm to give a node no further jobs. Returns false if this user may not, which is usual.
bool DrainSlurmNode(const std::string& node, std::string_view why);

/// Returns the nodes of the allocation that this process is in, with `srun` commands that run `millrace job agent`.
/// Errors: kPreconditionFailed outside an allocation.
Result<std::vector<RemoteNode>> AllocatedNodes(const std::string& millrace);
/// Returns $SLURM_JOB_ID, of an array's element "ARRAY_NUMBER"; "" outside an allocation.
std::string AllocationId();
/// Returns whether `job stop` has stopped this job of Slurm. The stop is recorded in the job's folder. So it is known
/// even if Slurm's signal came before this process started, or before this process could handle signals.
Result<bool> IsStoppedInSlurm(const std::filesystem::path& root, std::string_view name);
/// Puts this job back into Slurm's queue, if Slurm has interrupted it. Returns false, and does nothing, if `job stop`
/// has stopped the job or somebody has cancelled it.
Result<bool> RequeueIfInterrupted(const std::filesystem::path& root, std::string_view name);

}  // namespace millrace::jobs
