// `millrace job agent`: starts the ranks of one machine on the orders of a supervisor on another machine.
#pragma once

#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"

namespace millrace::cli {

/// The connection between the supervisor and the agent. Without `listen` and `connect`, the agent reads orders from
/// standard input and writes events to standard output.
struct AgentArguments {
  std::string listen;  ///< host:port on which the agent accepts a supervisor
  /// Host:port of a listening agent; this process then only joins its standard input and output to that agent.
  std::string connect;
  std::string key_file;  ///< a file with the key that both sides share
};

/// Runs an agent, or the connection to a listening agent, until it ends. Blocks. Returns the exit status.
Result<int> RunAgent(const Context& context, const AgentArguments& arguments);
void AddAgentCommand(CLI::App& job, Context& context);

}  // namespace millrace::cli
