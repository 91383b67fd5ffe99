#include "apps/millrace/jobs/ssh_jobs.h"

#include <utility>

#include "apps/millrace/jobs/schedulers/remote_options.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/history/run_history.h"
#include "millrace/jobs/launchers/ssh.h"

namespace millrace::cli {

Result<std::unique_ptr<jobs::Launcher>> LaunchOverSsh(const Context& context, const jobs::Spec& spec,
                                                      const std::string& program, const jobs::JobFolder& folder,
                                                      decltype(jobs::RemoteLauncher::Options::on_line) on_line) {
  const jobs::SshSpec& ssh = spec.run.ssh;
  const std::filesystem::path here = MR_TRY(ProgramDirectory());
  const jobs::SshAccess access{
      .options = ssh.options, .millrace = ssh.millrace_path.empty() ? (here / "millrace").string() : ssh.millrace_path};
  jobs::RemoteLauncher::Options remote;
  remote.nodes = MR_TRY(jobs::SshNodes(ssh.hosts, access));
  MR_TRY(FillRemoteOptions(context, spec, remote));
  remote.program = program;
  remote.env["MILLRACE_HISTORY_FILE"] = (folder.path() / history::kHistoryFile).string();
  remote.env.merge(jobs::EnvironmentOfRanks());
  remote.folder = folder.path();
  remote.on_line = std::move(on_line);
  remote.explain = [access](const jobs::RemoteNode& node, const ExitState& state, std::string_view words) {
    return jobs::ExplainSshEnd(node, state, words, access);
  };
  return std::make_unique<jobs::RemoteLauncher>(std::move(remote));
}

}  // namespace millrace::cli
