#include "apps/millrace/jobs/agent_command.h"

#include <unistd.h>

#include <memory>

#include "apps/common/output.h"
#include "millrace/jobs/launchers/agent_link.h"
#include "millrace/jobs/launchers/node_agent.h"

namespace millrace::cli {

Result<int> RunAgent(const Context& context, const AgentArguments& arguments) {
  if (arguments.listen.empty() && arguments.connect.empty()) {
    return jobs::RunNodeAgent(STDIN_FILENO, STDOUT_FILENO, context.stop);
  }
  const std::string key = MR_TRY(jobs::ReadAgentKey(arguments.key_file));
  constexpr Duration kPatience = std::chrono::seconds(10);
  if (!arguments.connect.empty()) {
    MR_TRY(jobs::ConnectToAgent(arguments.connect, key, STDIN_FILENO, STDOUT_FILENO, kPatience));
    return kExitOk;
  }
  const auto listening = [](int port) { PrintError("millrace: the agent listens on port {}\n", port); };
  MR_TRY(jobs::ListenAsAgent(arguments.listen, key, listening, context.stop));
  return kExitOk;
}

/// `job agent` is for RemoteLauncher. When it is asked to end, its ranks save and leave first.
void AddAgentCommand(CLI::App& job, Context& context) {
  auto arguments = std::make_shared<AgentArguments>();
  CLI::App* agent = AddCommand(job, context, "agent", "Start ranks of this machine as a supervisor elsewhere orders",
                               "  millrace job agent --listen 0.0.0.0:7420 --key-file /etc/millrace/key\n"
                               "  millrace job agent --connect node1:7420 --key-file /etc/millrace/key",
                               [&context, arguments] {
                                 const auto status = RunAgent(context, *arguments);
                                 return status ? *status : ReportError(context, status.error());
                               });
  agent->group("");
  CLI::Option* key = agent->add_option("--key-file", arguments->key_file,
                                       "A file with a key of 16 to 256 bytes, which both sides have");
  CLI::Option* listen = agent->add_option("--listen", arguments->listen, "Take orders from host:port");
  listen->needs(key);
  agent->add_option("--connect", arguments->connect, "Join standard input and output to an agent that listens")
      ->needs(key)
      ->excludes(listen);
}

}  // namespace millrace::cli
