// The list of commands, in the order in which --help shows them.
#include "apps/millrace/cli.h"

namespace millrace::cli {

void AddCommands(CLI::App& app, Context& context) {
  AddS3dCommand(app, context);
}

}  // namespace millrace::cli
