#include "apps/millrace/jobs/schedulers/launch_on_nodes.h"

#include <utility>

#include "millrace/base/process/subprocess.h"
#include "millrace/jobs/kubernetes/manifests.h"
#include "millrace/jobs/slurm/slurm.h"

namespace millrace::cli {

Result<std::unique_ptr<jobs::Launcher>> LaunchOnNodes(const Context& context, const jobs::Spec& spec,
                                                      const std::string& program, const jobs::JobFolder& folder,
                                                      decltype(jobs::RemoteLauncher::Options::on_line) on_line) {
  jobs::RemoteLauncher::Options remote;
  const std::string millrace = (MR_TRY(ProgramDirectory()) / "millrace").string();
  remote.nodes = spec.run.in_pods() ? jobs::PodNodes(spec, millrace) : MR_TRY(jobs::AllocatedNodes(millrace));
  const auto needed = static_cast<std::size_t>(spec.run.nodes);
  if (remote.nodes.size() < needed) {
    return Fail(Code::kPreconditionFailed, "run.nodes is {}, but the allocation has {} nodes", needed,
                remote.nodes.size());
  }
  remote.nodes.resize(needed);
  remote.ranks_per_node = spec.run.processes_per_node;
  remote.threads = spec.train.threads;
  remote.program = program;
  remote.job = spec.Render();
  remote.env = GlobalsEnvironment(context.globals);
  remote.folder = folder.path();
  remote.on_line = std::move(on_line);
  return std::make_unique<jobs::RemoteLauncher>(std::move(remote));
}

}  // namespace millrace::cli
