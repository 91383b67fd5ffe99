// The list of commands, in the order in which --help shows them.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

struct CommandGroup {
  std::string_view title;     ///< the heading in --help
  std::string_view commands;  ///< with blanks between them
};

// Man pages know a heading of commands by its first word (tools/man_pages.py).
constexpr std::array<CommandGroup, 6> kGroups = {{
    {"Commands for objects and buckets",
     "ls du head cp mv sync cat pipe rm presign mb rb undelete restore uploads duplicate run s3d"},
    {"Commands for mounts", "mount umount stats csi"},
    {"Commands for data", "data tokenizer"},
    {"Commands for training", "init train job ckpt top sagemaker"},
    {"Commands for models", "serve chat eval"},
    {"Commands for help", "doctor completion help"},
}};

void AddHelp(CLI::App& app) {
  CLI::App* help = app.add_subcommand("help", "Print the help of a command");
  help->footer("Examples:\n  millrace help cp\n  millrace help ckpt export\n");
  help->add_option("COMMAND", "The command, as after `millrace`")->expected(0, -1);  // main makes it COMMAND --help
}

}  // namespace

// clang-format off
void AddCommands(CLI::App& app, Context& context) {
  AddObjectCommands(app, context);
  AddS3dCommand(app, context);
  AddMountCommands(app, context);
  AddStatsCommand(app, context);
  AddCsiCommand(app, context);
  AddTokenizerCommands(app, context);
  AddDataCommands(app, context);
  AddInitCommand(app, context);
  AddJobCommands(app, context);
  AddCheckpointCommands(app, context);
  AddTraceCommand(app, context);
  AddTopCommand(app, context);
  AddChatCommand(app, context);
  AddSageMakerCommands(app, context);
  AddDoctorCommand(app, context);
  AddCompletionCommand(app, context);
  AddHelp(app);
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    for (const CommandGroup& group : kGroups) {
      const std::vector<std::string_view> names = Split(group.commands, ' ');
      if (std::ranges::find(names, command->get_name()) != names.end()) command->group(std::string(group.title));
    }
  }
}
// clang-format on

}  // namespace millrace::cli
