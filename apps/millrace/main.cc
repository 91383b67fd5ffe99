// `millrace`: global flags, the choice of a command, signals, the exit status.
#include <malloc.h>

#include <algorithm>

#include "apps/common/help.h"
#include "apps/common/output.h"
#include "apps/common/parse.h"
#include "apps/millrace/cli/cli.h"
#include "apps/millrace/mount/mount_helper.h"
#include "apps/millrace/version.h"
#include "millrace/base/text.h"
#include "millrace/mount/point/mountpoint_options.h"

namespace millrace::cli {
namespace {

/// "millrace ckpt ls"
std::string FullName(const CLI::App& command) {
  return command.get_parent() ? FullName(*command.get_parent()) + " " + command.get_name() : command.get_name();
}

/// The position of the command in the arguments, behind global flags and their values.
std::size_t CommandPosition(const CLI::App& app, const std::vector<std::string>& arguments) {
  std::size_t at = 0;
  while (at < arguments.size() && arguments[at].starts_with('-')) {
    const CLI::Option* flag = app.get_option_no_throw(arguments[at]);  // null for "--name=value"
    at += flag != nullptr && flag->get_items_expected_min() > 0 ? 2 : 1;
  }
  return at;
}

/// Replaces the options of Mountpoint for Amazon S3, if the command is `mount`.
Status TranslateMount(const CLI::App& app, Context& context) {
  const std::size_t command = CommandPosition(app, context.arguments);
  if (command >= context.arguments.size() || context.arguments[command] != "mount") return {};
  mount::MountCommandLine line = MR_TRY(mount::TranslateMountpointOptions(context.arguments));
  context.arguments = std::move(line.arguments);
  for (const std::string& note : line.notes) PrintError("millrace: {}\n", note);
  return {};
}

int Main(int argc, char** argv) {
  // One malloc arena for all threads: with an arena per thread, freed buffers stay in their arena, and the process
  // keeps several times its memory budget.
  mallopt(M_ARENA_MAX, 1);
  SignalStop signals;
  Context context;
  context.stop = signals.token();
  context.arguments.assign(argv + 1, argv + argc);
  if (mount::IsMountHelper(argv[0])) {
    auto translated = mount::TranslateMountHelper(context.arguments);
    if (!translated) {
      ReportError(context, translated.error());
      return kExitUsage;
    }
    context.arguments = *std::move(translated);
    // At boot, the network or the store may come up after the mounts.
    const auto waits = [](const std::string& argument) { return argument.starts_with("--wait-for-endpoint"); };
    if (std::ranges::none_of(context.arguments, waits)) context.arguments.emplace_back("--wait-for-endpoint=30s");
  }

  CLI::App app("Train language models directly from object storage.", "millrace");
  UseHelp(app);
  app.footer(
      "An environment variable sets the default of each global flag: MILLRACE_ENDPOINT_URL for --endpoint-url, and so "
      "on.");
  app.set_version_flag("--version", VersionText, "Print the version, and what of this machine it uses");
  app.require_subcommand(1);
  app.fallthrough();
  AddGlobalFlags(app, context.globals);
  AddCommands(app, context);
  const bool asks = context.arguments.size() < 2 || !context.arguments[1].starts_with('-');  // not `help --help`
  if (!context.arguments.empty() && context.arguments.front() == "help" && asks) {
    std::ranges::rotate(context.arguments, context.arguments.begin() + 1);
    context.arguments.back() = "--help";
  }

  if (const Status translated = TranslateMount(app, context); !translated) {
    ReportError(context, translated.error());
    return kExitUsage;
  }

  try {
    app.parse(std::vector<std::string>(context.arguments.rbegin(),
                                       context.arguments.rend()));  // CLI11 expects them in reverse
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const CLI::App& chosen = ChosenCommand(app);
    PrintError("millrace: {}; see `{} --help`\n", DescribeMistake(app, error), FullName(chosen));
    return kExitUsage;
  }
  const int status = context.run();
  return FinishOutput() || status != kExitOk ? status : kExitFailed;
}

}  // namespace
}  // namespace millrace::cli

int main(int argc, char** argv) { return millrace::cli::Main(argc, argv); }
