#include "apps/millrace/jobs/schedulers/remote_launch.h"

#include <utility>

#include "apps/millrace/doctor/doctor.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/history/run_history.h"
#include "millrace/jobs/elastic.h"
#include "millrace/jobs/health/spot_watch.h"
#include "millrace/jobs/kubernetes/manifests.h"
#include "millrace/jobs/launchers/slurm.h"
#include "millrace/jobs/launchers/ssh.h"
#include "millrace/jobs/spec/foreign_program.h"
#include "millrace/jobs/training_setup.h"

namespace millrace::cli {
namespace {

using jobs::RemoteLauncher;

/// Returns what the agents check before each attempt. The store is that of the data and the checkpoints.
jobs::HealthOptions HealthOptionsOf(const Context& context, const jobs::Spec& spec) {
  std::vector<std::string> urls = {spec.checkpoint.url, spec.model.from};
  for (const data::DataSource& source : spec.data.dataset.sources) urls.push_back(source.url);
  return jobs::HealthOptions{.checks = spec.run.health_checks,
                             .store = StoreEndpointUrl(context, urls),
                             .ca_bundle = context.globals.connect.ca_bundle,
                             .spot = spec.run.spot ? jobs::SpotWatch::DefaultEndpoint() : "",
                             .gpus = jobs::WantedGpus(spec)};
}

/// Fills in what follows from the job: how many nodes and ranks, the job file, the environment, the health checks.
/// Leaves out the nodes that the job cannot use. REQUIRES: options.nodes is set.
/// Errors: kPreconditionFailed if there are too few nodes.
Status FillRemoteOptions(const Context& context, const jobs::Spec& spec, jobs::RemoteLauncher::Options& options) {
  options.sizes = jobs::NodeCounts(spec);
  const auto fewest = static_cast<std::size_t>(options.sizes.back());
  const auto most = static_cast<std::size_t>(options.sizes.front()) + static_cast<std::size_t>(spec.run.spares);
  if (options.nodes.size() < fewest) {
    return Fail(Code::kPreconditionFailed, "the job needs {} nodes, but there are {}", fewest, options.nodes.size());
  }
  if (options.nodes.size() > most) options.nodes.resize(most);
  options.ranks_per_node = spec.run.processes_per_node;
  options.threads = spec.train.threads;
  options.health = HealthOptionsOf(context, spec);
  options.job = MR_TRY(jobs::OnNodes(spec, options.sizes.front())).Render();
  options.job_on = [spec](int nodes) -> Result<std::string> { return MR_TRY(jobs::OnNodes(spec, nodes)).Render(); };
  options.foreign = jobs::ForeignProgramOf(spec);
  options.env = RankEnvironment(context, spec);
  return {};
}

/// Sets the options of an elastic job on this machine.
Status UseParts(const Context& context, const jobs::Spec& spec, const std::string& millrace,
                RemoteLauncher::Options& options) {
  for (int part = 0; part < jobs::NodeCounts(spec).front(); ++part) {
    options.nodes.push_back(
        {.name = fmt::format("part-{}", part), .address = "127.0.0.1", .command = {millrace, "job", "agent"}});
  }
  MR_TRY(FillRemoteOptions(context, spec, options));
  options.ranks_per_node = 1;
  options.one_machine = true;
  options.health.checks.clear();  // of the machine; the job was checked before it started
  return {};
}

/// Sets the options of a job on the hosts of ssh.
Status UseHosts(const Context& context, const jobs::Spec& spec, const std::string& millrace,
                RemoteLauncher::Options& options) {
  const jobs::SshSpec& ssh = spec.run.ssh;
  const jobs::SshAccess access{.options = ssh.options,
                               .millrace = ssh.millrace_path.empty() ? millrace : ssh.millrace_path};
  options.nodes = MR_TRY(jobs::SshNodes(ssh.hosts, access));
  MR_TRY(FillRemoteOptions(context, spec, options));
  options.env.merge(jobs::EnvironmentOfRanks());
  options.explain = [access](const jobs::RemoteNode& node, const ExitState& state, std::string_view words) {
    return jobs::ExplainSshEnd(node, state, words, access);
  };
  return {};
}

/// Sets the options of a job whose supervisor runs on a machine that a scheduler gave it: Slurm's first node, the first
/// pod.
Status UseAllocation(const Context& context, const jobs::Spec& spec, const std::string& millrace,
                     RemoteLauncher::Options& options) {
  options.nodes = spec.run.in_pods() ? jobs::PodNodes(spec, millrace) : MR_TRY(jobs::AllocatedNodes(millrace));
  MR_TRY(FillRemoteOptions(context, spec, options));
  if (!spec.run.in_pods()) {
    options.on_bad_node = [](const std::string& node, const std::string& why) { jobs::DrainSlurmNode(node, why); };
  }
  return {};
}

}  // namespace

std::map<std::string, std::string> RankEnvironment(const Context& context, const jobs::Spec& spec) {
  std::map<std::string, std::string> env = spec.run.env;
  env.merge(GlobalsEnvironment(context.globals));
  env["MILLRACE_RUN"] = SecureHex(8);
  return env;
}

Result<std::unique_ptr<jobs::Launcher>> LaunchRemotely(const Context& context, const jobs::Spec& spec,
                                                       const std::string& program, const jobs::JobFolder& folder,
                                                       decltype(RemoteLauncher::Options::on_line) on_line) {
  const std::string millrace = (MR_TRY(ProgramDirectory()) / "millrace").string();
  RemoteLauncher::Options options;
  const auto use = spec.run.is_over_ssh() ? UseHosts : spec.run.launcher == "local" ? UseParts : UseAllocation;
  MR_TRY(use(context, spec, millrace, options));
  options.program = program;
  options.env["MILLRACE_HISTORY_FILE"] = (folder.path() / history::kHistoryFile).string();
  options.folder = folder.path();
  options.on_line = std::move(on_line);
  return std::make_unique<RemoteLauncher>(std::move(options));
}

}  // namespace millrace::cli
