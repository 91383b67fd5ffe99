#include <openssl/ssl.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "apps/millrace/jobs/schedulers/scheduler.h"
#include "millrace/base/clock.h"
#include "millrace/base/environment.h"
#include "millrace/base/hash/random.h"
#include "millrace/jobs/kubernetes/cluster_job.h"

namespace millrace::cli {
namespace {

constexpr int kAgentKeyBytes = 32;
/// Callers that follow a job ask often; a cluster is not to be asked more often than this about one job.
constexpr Duration kRefreshInterval = std::chrono::milliseconds(500);

class Kubernetes final : public Scheduler {
 public:
  /// This object lives until the process exits, and the threads of its clients with it. They use OpenSSL, whose
  /// clean-up at exit must come later: it does if OpenSSL was started first.
  Kubernetes() { ::OPENSSL_init_ssl(0, nullptr); }

  std::string_view title() const override { return "Kubernetes"; }

  Result<std::string> Render(const Context& context, const jobs::Spec& spec) override {
    const std::string& space = spec.run.kubernetes.space;
    std::vector<jobs::ClusterObject> objects = Objects(context, spec, space.empty() ? "default" : space);
    // Pods wait for what is not there yet. A queue starts the job itself.
    if (spec.run.kubernetes.queue.empty()) {
      objects.front().body.merge_patch(jobs::SuspendPatch(spec.run.launcher, false));
    }
    std::string text;
    for (jobs::ClusterObject& object : objects) {
      if (space.empty()) object.body["metadata"].erase("namespace");
      text += "---\n" + jobs::ToYaml(object.body);
    }
    return text;
  }

  Result<std::string> Submit(const Context& context, const jobs::Spec& spec) override {
    const jobs::KubernetesSpec& pods = spec.run.kubernetes;
    jobs::ClusterApi* api = MR_TRY(Cluster(pods.context));
    const jobs::ClusterJobName job{.launcher = spec.run.launcher,
                                   .context = pods.context.empty() ? api->access().name : pods.context,
                                   .space = pods.space.empty() ? api->access().space : pods.space,
                                   .name = spec.name};
    MR_TRY(jobs::CreateClusterJob(*api, job, Objects(context, spec, job.space), !pods.queue.empty()));
    return job.Id();
  }

  Status Refresh(jobs::JobStatus& status, const jobs::Submission& submission) override {
    // The supervisor's last words; but an MPIJob may start it again after a failure.
    if (status.state == "done" || (status.state == "failed" && submission.launcher != "mpijob")) return {};
    TimePoint& next = next_refresh_[submission.id];
    SystemClock().SleepUntil(next);
    const auto job = MR_TRY(jobs::ClusterJobName::Parse(submission.launcher, submission.id));
    jobs::ClusterApi* api = MR_TRY(Cluster(job.context));
    const jobs::ClusterJob found = MR_TRY(jobs::FindClusterJob(*api, job));
    const std::filesystem::path root = MR_TRY(jobs::StateRoot());
    // A node that is lost does not give its logs.
    const jobs::CollectedLog news =
        jobs::CollectLog(*api, job, found, root / "jobs" / status.name).value_or(jobs::CollectedLog());
    if (news.status) {
      status = *news.status;
    } else if (news.of_new_pod) {
      status.state = "starting";
      status.message = fmt::format("pod {} runs", found.supervisor_pod);
      status.ranks.clear();
    }
    if (news.status || news.of_new_pod) MR_TRY(jobs::NoteStatus(root, status.name, status));
    jobs::ApplyClusterState(status, job, found, MR_TRY(jobs::IsStopRequested(root, status.name)));
    next = SystemClock().Now() + kRefreshInterval;
    return {};
  }

  Status Stop(const std::string& name, const jobs::Submission& submission) override {
    const auto job = MR_TRY(jobs::ClusterJobName::Parse(submission.launcher, submission.id));
    jobs::ClusterApi* api = MR_TRY(Cluster(job.context));
    const jobs::ClusterJob found = MR_TRY(jobs::FindClusterJob(*api, job));
    using Phase = jobs::ClusterJob::Phase;
    if (found.phase == Phase::kGone || found.phase == Phase::kDone || found.phase == Phase::kFailed) {
      return Fail(Code::kPreconditionFailed,
                  "job \"{}\" does not run: {} of namespace {} {}; `millrace job submit` starts the job again", name,
                  job.name, job.space, found.phase == Phase::kGone ? "is gone" : "has ended");
    }
    MR_TRY(jobs::NoteStopRequest(MR_TRY(jobs::StateRoot()), name));
    return jobs::StopClusterJob(*api, job, found);
  }

  Status Delete(const jobs::Submission& submission) override {
    const auto job = MR_TRY(jobs::ClusterJobName::Parse(submission.launcher, submission.id));
    jobs::ClusterApi* api = MR_TRY(Cluster(job.context));
    const jobs::ClusterJob found = MR_TRY(jobs::FindClusterJob(*api, job));
    return found.phase == jobs::ClusterJob::Phase::kGone ? Status() : jobs::DeleteClusterJob(*api, job);
  }

  static std::vector<jobs::ClusterObject> Objects(const Context& context, const jobs::Spec& spec,
                                                  const std::string& space) {
    return jobs::RenderObjects(spec, space,
                               {.agent_key = SecureHex(kAgentKeyBytes), .env = GlobalsEnvironment(context.globals)});
  }

  Result<jobs::ClusterApi*> Cluster(const std::string& context) {
    std::unique_ptr<jobs::ClusterApi>& api = clusters_[context];
    if (!api) {
      // A pod's own cluster has no context.
      auto access = MR_TRY(jobs::FindCluster(context == jobs::kThisCluster ? "" : context, EnvironmentVariable));
      api = std::make_unique<jobs::ClusterApi>(std::move(access));
    }
    return api.get();
  }

  std::map<std::string, std::unique_ptr<jobs::ClusterApi>> clusters_;  ///< by context
  std::map<std::string, TimePoint> next_refresh_;                      ///< by job
};

}  // namespace

Scheduler& KubernetesScheduler() {
  static Kubernetes kubernetes;
  return kubernetes;
}

}  // namespace millrace::cli
