// `millrace-train nodes`: compares the machines of a job, and measures the links between them. `millrace doctor --node
// --links` runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "millrace/base/result.h"
#include "millrace/engine/parallel/collective.h"

namespace millrace {

struct NodesArguments {
  std::string findings;  ///< what was found on this machine: a list in JSON
};

/// Adds the command. `arguments` must outlive the parsing.
CLI::App* AddNodesCommand(CLI::App& app, NodesArguments& arguments);

/// Joins the ranks of the environment, compares what was found on their machines, and measures the links. Prints a JSON
/// object: `rank`, and `nodes`, each with `node` and `findings`: rank 0 all machines, others their own. Instead of
/// failing, prints an object with `error`. Returns the exit status. Stores the collective in `group`; the caller must
/// not destroy it (see main).
int PrintNodes(const NodesArguments& arguments, std::unique_ptr<engine::Collective>& group);

}  // namespace millrace
