// The objects of a job in a Kubernetes cluster.
//
//   Job (JobSet, MPIJob) NAME      the pods; the pod of index 0, or the launcher, runs the supervisor
//   Service NAME                   headless: each pod gets a host name
//   ConfigMap NAME                 the job file
//   Secret NAME-agents             the key by which the supervisor and the agents know each other; not of MPIJobs
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/jobs/launchers/remote_launcher.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::jobs {

inline constexpr int kAgentPort = 7420;  ///< of the agents in pods; IANA has assigned it to nobody
inline constexpr const char* kAgentKeyFile = "/etc/millrace/agents/key";
/// A label of all objects and pods that Millrace makes for a job. Its value is the job's name.
inline constexpr const char* kJobNameLabel = "millrace.io/job";
inline constexpr const char* kQueueLabel = "kueue.x-k8s.io/queue-name";
inline constexpr const char* kPodJobFile = "/etc/millrace/job/job.yaml";

/// The options that a submission adds to a job.
struct PodOptions {
  std::string agent_key;                   ///< fresh and secret
  std::map<std::string, std::string> env;  ///< for every container
};

/// An object and where the API has it.
struct ClusterObject {
  std::string path;  ///< of its kind, such as "/apis/batch/v1/namespaces/default/jobs"
  Json body;
  std::string name() const { return body["metadata"]["name"].get<std::string>(); }
};

/// Returns the objects of a job. The first has the pods, and is suspended: the others belong to it, so that they go
/// with it. REQUIRES: spec.run.in_pods(). `space` is the namespace.
std::vector<ClusterObject> RenderObjects(const Spec& spec, const std::string& space, const PodOptions& options);

/// Returns the change that suspends such a job, or lets it start (RFC 7386).
Json SuspendPatch(const std::string& launcher, bool suspend);

/// Returns the path of the object that has the pods.
std::string JobPath(const std::string& launcher, const std::string& space, const std::string& name);
/// Returns the selector of a job's pods, for a query.
std::string PodSelector(const std::string& launcher, const std::string& name);

/// Returns the pods of a job as nodes, for its supervisor. The first is this pod.
std::vector<RemoteNode> PodNodes(const Spec& spec, const std::string& millrace);

/// Names the workers of an MPIJob, for its launcher, as hosts that ssh reaches. Reads the hostfile of the MPI Operator.
Status NameMpiHosts(RunSpec& run);

/// Returns a value as YAML, in block style.
std::string ToYaml(const Json& value);

}  // namespace millrace::jobs
