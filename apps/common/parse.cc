#include "apps/common/parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/common/help.h"
#include "apps/common/output.h"
#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

/// Words of aws and s5cmd, and what does the same here.
constexpr std::array<std::pair<std::string_view, std::string_view>, 26> kForeignWords = {{
    {"s3", "leave out \"s3\": `aws s3 ls` is `millrace ls`"},
    {"s3api", "`millrace --help` lists the commands"},
    {"--only-show-errors", "use --quiet"},
    {"--no-progress", "use --progress off"},
    {"--show-progress", "use --progress on"},
    {"--numworkers", "use --concurrency"},
    {"--endpoint", "use --endpoint-url"},
    {"--copy-props", "metadata are copied with the object; --metadata-directive REPLACE drops them"},
    {"--follow-symlinks", "links are followed unless you say --no-follow-symlinks"},
    {"--if-source-newer", "use --if-newer"},
    {"--size-differs", "use --if-size-differ"},
    {"--checksum-algorithm", "uploads always carry a CRC-32C, which the store checks"},
    {"--checksum-mode", "downloads are verified unless you say --no-verify"},
    {"--force-glacier-transfer", "archived objects are copied once `millrace restore` has made them readable"},
    {"--ignore-glacier-warnings", "archived objects are copied once `millrace restore` has made them readable"},
    {"--page-size", "leave it out: pages have 1,000 names"},
    {"--expected-size", "leave it out: parts grow with the stream"},
    {"--retry-count", "set AWS_MAX_ATTEMPTS"},
    {"--credentials-file", "set AWS_SHARED_CREDENTIALS_FILE"},
    {"--debug", "use --log-level debug"},
    {"--log", "use --log-level"},
    {"--output", "use --json"},
    {"--use-list-objects-v1", "leave it out: listings are of version 2"},
    {"--sse-c", "use --sse-c-key-file FILE"},
    {"--acl-public-read", "use --acl public-read"},
    {"--dryrun", "use --dry-run"},
}};

/// Returns an error text that suggests known words close to `word`, which `command` does not know.
std::string DescribeUnknown(const CLI::App& command, const std::string& word) {
  const std::string flag = word.substr(0, word.find('='));
  const auto foreign = std::ranges::find(kForeignWords, flag, &std::pair<std::string_view, std::string_view>::first);
  if (foreign != kForeignWords.end()) return fmt::format("unknown \"{}\": {}", word, foreign->second);
  std::vector<std::string> names;
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  const auto commands = command.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* sub : commands) names.push_back(sub->get_name());
  const std::vector<std::string_view> views(names.begin(), names.end());
  return UnknownName(word.starts_with('-') ? "flag" : commands.empty() ? "argument" : "command", word, views);
}

/// Returns the option that CLI11's message begins with, or null.
const CLI::Option* OptionOf(const CLI::App& command, const std::string& message) {
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      const std::string name = option->get_name();
      if (message.starts_with(name) &&
          (message.size() == name.size() || message[name.size()] == ' ' || message[name.size()] == ':')) {
        return option;
      }
    }
  }
  return nullptr;
}

/// Returns a flag's name, or how the help names an argument.
std::string ShownName(const CLI::Option& option) {
  return option.get_positional() ? ValueName(option) : option.get_name();
}

}  // namespace

std::string DescribeMistake(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = ChosenCommand(app);
  const std::vector<std::string> unknown = app.remaining(true);
  if (!unknown.empty()) return DescribeUnknown(command, unknown.front());
  std::string message = error.what();
  const std::string kind = error.get_name();
  constexpr std::string_view kConvert = "Could not convert: ", kEquals = " = ";
  if (kind == "ConversionError" && message.starts_with(kConvert)) {
    message.erase(0, kConvert.size());
    const std::size_t equals = message.find(kEquals);
    return fmt::format("{}: \"{}\" is not a number", message.substr(0, equals),
                       equals == std::string::npos ? "" : message.substr(equals + kEquals.size()));
  }
  const CLI::Option* option = OptionOf(command, message);
  if (kind == "RequiredError") {
    if (option != nullptr) return fmt::format("{} is missing", ShownName(*option));
    return message.starts_with("A subcommand") ? "a command is missing" : message;
  }
  if (kind == "ArgumentMismatch" && option != nullptr) {
    if (!option->get_positional()) return fmt::format("{} needs {}", option->get_name(), ValueName(*option));
    return fmt::format("expected {}", ValueName(*option));
  }
  const std::string excludes = " excludes ";
  if (const std::size_t at = message.find(excludes); kind == "ExcludesError" && at != std::string::npos) {
    return fmt::format("{} and {} do not go together", message.substr(0, at), message.substr(at + excludes.size()));
  }
  return message;
}

const CLI::App& ChosenCommand(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : ChosenCommand(*chosen.front());
}

std::optional<int> ParseOrExit(CLI::App& app, int argc, char** argv) {
  UseHelp(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    PrintError("{}: {}; see `{} --help`\n", app.get_name(), DescribeMistake(app, error), app.get_name());
    return 2;
  }
  return std::nullopt;
}

}  // namespace millrace::cli
