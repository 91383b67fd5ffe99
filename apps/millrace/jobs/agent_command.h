// millrace job agent: starts the ranks of one machine, as a supervisor elsewhere orders.
#pragma once

#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"

namespace millrace::cli {

/// How orders come. Without `listen` and `connect`, through standard input.
struct AgentArguments {
  std::string listen;   ///< host:port to take orders from
  std::string connect;  ///< host:port of an agent that listens; standard input and output are joined to it
  std::string key_file;
};

/// Runs an agent, or the connection to one, until it ends. Blocks.
Result<int> RunAgent(const Context& context, const AgentArguments& arguments);
void AddAgentCommand(CLI::App& job, Context& context);

}  // namespace millrace::cli
