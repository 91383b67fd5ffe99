// `millrace`: global flags, the choice of a command, signals, the exit status.
#include <cstdio>

#include "apps/millrace/cli.h"
#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

/// The words a user may have meant when `command` did not know `word`.
std::string Suggestion(const CLI::App& command, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    if (app == &command)
      for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; }))
        names.push_back(sub->get_name());
  }
  std::vector<std::string_view> views(names.begin(), names.end());
  return UnknownName(word.starts_with('-') ? "flag" : command.get_parent() ? "argument" : "command", word, views);
}

const CLI::App& ChosenCommand(const CLI::App& app) {
  auto chosen = app.get_subcommands();
  return chosen.empty() ? app : ChosenCommand(*chosen.front());
}

int Main(int argc, char** argv) {
  SignalStop signals;
  Context context;
  context.stop = signals.token();
  context.arguments.assign(argv + 1, argv + argc);

  CLI::App app("Train language models straight from object storage.", "millrace");
  app.set_version_flag("--version", "millrace " MILLRACE_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  AddGlobalFlags(app, context.globals);
  AddCommands(app, context);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    const CLI::App& chosen = ChosenCommand(app);
    auto rest = app.remaining(true);
    std::string word = rest.empty() ? "" : rest.front();
    fmt::print(stderr, "millrace: {}; see `{} --help`\n", Suggestion(chosen, word),
               chosen.get_parent() ? "millrace " + chosen.get_name() : "millrace");
    return kExitUsage;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const CLI::App& chosen = ChosenCommand(app);
    fmt::print(stderr, "millrace: {}; see `millrace{}{} --help`\n", error.what(), chosen.get_parent() ? " " : "",
               chosen.get_parent() ? chosen.get_name() : "");
    return kExitUsage;
  }
  return context.run();
}

}  // namespace
}  // namespace millrace::cli

int main(int argc, char** argv) { return millrace::cli::Main(argc, argv); }
