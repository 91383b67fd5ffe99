// `millrace`: global flags, the choice of a command, signals, the exit status.
#include <malloc.h>

#include <algorithm>

#include "apps/common/output.h"
#include "apps/millrace/cli/cli.h"
#include "apps/millrace/mount/mount_helper.h"
#include "apps/millrace/version.h"
#include "millrace/base/text.h"
#include "millrace/mount/point/mountpoint_options.h"

namespace millrace::cli {
namespace {

/// Prints commands before flags, and leaves out the environment variable of each flag: the footer explains them.
class Help final : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    if (mode == CLI::AppFormatMode::Sub) return Formatter::make_help(app, std::move(name), mode);
    std::string text = make_description(app) + make_usage(app, name) + make_positionals(app) +
                       make_subcommands(app, mode) + make_groups(app, mode);
    if (app->get_parent() != nullptr)
      text += "\nGlobal flags (--endpoint-url, --json, --dry-run, ...): see `millrace --help`\n";
    return text + make_footer(app);
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text = Formatter::make_option_opts(option);
    std::size_t begin = text.find(" (Env:");
    if (begin != std::string::npos) text.erase(begin, text.find(')', begin) + 1 - begin);
    return text;
  }
};

/// Returns an error text that suggests known words close to `word`, which `command` does not know.
std::string Suggestion(const CLI::App& command, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    if (app == &command)
      for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; }))
        names.push_back(sub->get_name());
  }
  bool takes_commands = !command.get_subcommands([](const CLI::App*) { return true; }).empty();
  std::vector<std::string_view> views(names.begin(), names.end());
  return UnknownName(word.starts_with('-') ? "flag" : takes_commands ? "command" : "argument", word, views);
}

const CLI::App& ChosenCommand(const CLI::App& app) {
  auto chosen = app.get_subcommands();
  return chosen.empty() ? app : ChosenCommand(*chosen.front());
}

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
  }

  CLI::App app("Train language models directly from object storage.", "millrace");
  app.formatter(std::make_shared<Help>());
  app.footer(
      "An environment variable sets the default of each global flag: MILLRACE_ENDPOINT_URL for --endpoint-url, and so "
      "on.");
  app.set_version_flag("--version", VersionText, "Print the version, and what of this machine it uses");
  app.require_subcommand(1);
  app.fallthrough();
  AddGlobalFlags(app, context.globals);
  AddCommands(app, context);
  app.add_subcommand("help", "Help about a command: the same as its --help");
  if (!context.arguments.empty() && context.arguments.front() == "help") {
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
    // Reports an unknown word first: it often causes the other errors of the parser.
    std::vector<std::string> unknown = app.remaining(true);
    PrintError("millrace: {}; see `{} --help`\n", unknown.empty() ? error.what() : Suggestion(chosen, unknown.front()),
               FullName(chosen));
    return kExitUsage;
  }
  const int status = context.run();
  return FinishOutput() || status != kExitOk ? status : kExitFailed;
}

}  // namespace
}  // namespace millrace::cli

int main(int argc, char** argv) { return millrace::cli::Main(argc, argv); }
