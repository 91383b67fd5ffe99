// The list of commands, in the order in which --help shows them.
#include "apps/millrace/cli.h"

namespace millrace::cli {

void AddCommands([[maybe_unused]] CLI::App& app, [[maybe_unused]] Context& context) {}

}  // namespace millrace::cli
