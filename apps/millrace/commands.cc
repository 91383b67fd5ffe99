// The list of commands, in the order in which --help shows them.
#include "apps/millrace/cli/cli.h"

namespace millrace::cli {

// clang-format off
void AddCommands(CLI::App& app, Context& context) {
  AddObjectCommands(app, context);
  AddS3dCommand(app, context);
  AddMountCommands(app, context);
  AddStatsCommand(app, context);
  AddCsiCommand(app, context);
  AddCheckpointCommands(app, context);
  AddDoctorCommand(app, context);
  AddTokenizerCommands(app, context);
  AddDataCommands(app, context);
  AddInitCommand(app, context);
  AddJobCommands(app, context);
  AddTraceCommand(app, context);
  AddTopCommand(app, context);
  AddChatCommand(app, context);
  AddSageMakerCommands(app, context);
  AddCompletionCommand(app, context);
}
// clang-format on

}  // namespace millrace::cli
