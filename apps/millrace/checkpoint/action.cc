#include "apps/millrace/checkpoint/action.h"

#include <utility>

#include "apps/common/output.h"

namespace millrace::cli::ckpt {

CLI::App* AddAction(CLI::App& parent, Context& context, std::shared_ptr<Arguments> arguments, std::string name,
                    std::string description, std::string examples, Action action,
                    std::initializer_list<std::string Arguments::*> positionals) {
  CLI::App* command = AddCommand(parent, context, std::move(name), std::move(description), std::move(examples),
                                 [&context, arguments, action] {
                                   Status status = action(context, *arguments);
                                   return status ? kExitOk : ReportError(context, status.error());
                                 });
  for (auto positional : positionals) {
    bool url = positional == &Arguments::url;
    const char* label = url ? "url" : positional == &Arguments::source ? "source" : "destination";
    command
        ->add_option(label, (*arguments).*positional,
                     url ? "Where the checkpoints are: s3://bucket/prefix or a folder"
                         : "A folder or file: s3://bucket/key or a path")
        ->required();
  }
  return command;
}

CLI::Option* AddStep(CLI::App* command, const std::shared_ptr<Arguments>& arguments, const char* what) {
  return command->add_option("--step", arguments->step, what);
}

}  // namespace millrace::cli::ckpt
