#include "apps/millrace/jobs/schedulers/launch_on_nodes.h"

#include <utility>

#include "apps/millrace/jobs/schedulers/remote_options.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/history/run_history.h"
#include "millrace/jobs/elastic.h"
#include "millrace/jobs/kubernetes/manifests.h"
#include "millrace/jobs/launchers/slurm.h"

namespace millrace::cli {

Result<std::unique_ptr<jobs::Launcher>> LaunchOnNodes(const Context& context, const jobs::Spec& spec,
                                                      const std::string& program, const jobs::JobFolder& folder,
                                                      decltype(jobs::RemoteLauncher::Options::on_line) on_line) {
  jobs::RemoteLauncher::Options remote;
  const std::string millrace = (MR_TRY(ProgramDirectory()) / "millrace").string();
  remote.nodes = spec.run.in_pods() ? jobs::PodNodes(spec, millrace) : MR_TRY(jobs::AllocatedNodes(millrace));
  MR_TRY(FillRemoteOptions(context, spec, remote));
  if (!spec.run.in_pods()) {
    remote.on_bad_node = [](const std::string& node, const std::string& why) { jobs::DrainSlurmNode(node, why); };
  }
  remote.program = program;
  remote.env["MILLRACE_HISTORY_FILE"] = (folder.path() / history::kHistoryFile).string();
  remote.folder = folder.path();
  remote.on_line = std::move(on_line);
  return std::make_unique<jobs::RemoteLauncher>(std::move(remote));
}

Result<std::unique_ptr<jobs::Launcher>> LaunchInParts(const Context& context, const jobs::Spec& spec,
                                                      const std::string& program, const jobs::JobFolder& folder,
                                                      decltype(jobs::RemoteLauncher::Options::on_line) on_line) {
  jobs::RemoteLauncher::Options remote;
  const std::string millrace = (MR_TRY(ProgramDirectory()) / "millrace").string();
  for (int part = 0; part < jobs::NodeCounts(spec).front(); ++part) {
    remote.nodes.push_back(
        {.name = fmt::format("part-{}", part), .address = "127.0.0.1", .command = {millrace, "job", "agent"}});
  }
  MR_TRY(FillRemoteOptions(context, spec, remote));
  remote.ranks_per_node = 1;
  remote.one_machine = true;
  remote.health.checks.clear();  // of the machine; the job was checked before it started
  remote.program = program;
  remote.env["MILLRACE_HISTORY_FILE"] = (folder.path() / history::kHistoryFile).string();
  remote.folder = folder.path();
  remote.on_line = std::move(on_line);
  return std::make_unique<jobs::RemoteLauncher>(std::move(remote));
}

}  // namespace millrace::cli
