// completion: scripts for shells, made from the tree of commands.
#include <fmt/ranges.h>

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "apps/common/flag_checks.h"
#include "apps/millrace/cli/cli.h"
#include "millrace/jobs/state.h"
#include "millrace/object/blocking.h"

namespace millrace::cli {
namespace {

struct Word {
  std::string text, description;
  std::string values = "";  ///< of a flag: what it takes, with blanks between, if that is a list
};

/// Commands whose argument is the name of a job.
constexpr std::array<std::string_view, 5> kJobCommands = {"job status", "job logs", "job attach", "job stop", "top"};

/// A command with its subcommands and flags. `path` is "" for the program itself, else "ckpt ls" and so on.
struct Command {
  std::string path;
  std::vector<Word> commands, flags;
};

std::vector<const CLI::App*> SubcommandsOf(const CLI::App& app) {
  return app.get_subcommands(
      [](const CLI::App* command) { return !command->get_name().empty() && !command->get_group().empty(); });
}

std::vector<Word> FlagsOf(const CLI::App& app) {
  std::vector<Word> flags;
  for (const CLI::Option* option : app.get_options()) {
    const std::string values = fmt::format("{}", fmt::join(ChoicesOf(*option), " "));
    for (const std::string& name : option->get_lnames())
      flags.push_back({"--" + name, option->get_description(), values});
    for (const std::string& name : option->get_snames())
      flags.push_back({"-" + name, option->get_description(), values});
  }
  return flags;
}

void Collect(const CLI::App& app, const std::string& path, std::vector<Command>& into) {
  Command command{path, {}, FlagsOf(app)};
  for (const CLI::App* sub : SubcommandsOf(app)) command.commands.push_back({sub->get_name(), sub->get_description()});
  into.push_back(std::move(command));
  for (const CLI::App* sub : SubcommandsOf(app)) {
    Collect(*sub, path.empty() ? sub->get_name() : path + " " + sub->get_name(), into);
  }
}

/// The text in single quotes, for any of the shells.
std::string Quoted(std::string_view text, std::string_view escaped_quote) {
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? std::string(escaped_quote) : std::string(1, c == '\n' ? ' ' : c);
  return quoted + "'";
}

std::string Joined(const std::vector<Word>& words) {
  std::string joined;
  for (const Word& word : words) joined += (joined.empty() ? "" : " ") + word.text;
  return joined;
}

/// Walks the words typed so far to the innermost command, in shell syntax that bash and zsh share.
std::string CaseOfCommands(const std::vector<Command>& commands, std::string_view indent) {
  std::string cases;
  for (const Command& command : commands) {
    std::string words = Joined(command.commands), flags = Joined(command.flags);
    if (!command.path.empty() && !commands.front().flags.empty()) flags += " " + Joined(commands.front().flags);
    cases += fmt::format("{}{}) commands={}; flags={} ;;\n", indent, Quoted(command.path, R"('\'')"),
                         Quoted(words, R"('\'')"), Quoted(flags, R"('\'')"));
  }
  return cases;
}

/// Finds the values of a flag behind its command, "cp --sse", in shell syntax that bash and zsh share.
std::string CaseOfValues(const std::vector<Command>& commands, std::string_view indent) {
  std::string cases;
  for (const Command& command : commands) {
    for (const Word& flag : command.flags) {
      if (flag.values.empty()) continue;
      const std::string pattern =
          command.path.empty() ? "*' " + flag.text + "'" : "'" + command.path + " " + flag.text + "'";
      cases += fmt::format("{}{}) values='{}' ;;\n", indent, pattern, flag.values);
    }
  }
  return cases;
}

/// The commands that take the name of a job, as the pattern of a case.
std::string JobPattern() { return fmt::format("'{}'", fmt::join(kJobCommands, "'|'")); }

std::string Bash(const std::vector<Command>& commands) {
  return "# bash completion for millrace: source <(millrace completion bash)\n"
         "_millrace() {\n"
         "  local path= commands flags values= word i current=${COMP_WORDS[COMP_CWORD]}\n"
         "  _millrace_words \"\"\n"
         "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
         "    word=${COMP_WORDS[i]}\n"
         "    if [[ \" $commands \" == *\" $word \"* ]]; then\n"
         "      path=${path:+$path }$word\n"
         "      _millrace_words \"$path\"\n"
         "    fi\n"
         "  done\n"
         "  _millrace_values \"$path ${COMP_WORDS[COMP_CWORD-1]}\"\n"
         "  local line=${COMP_LINE:0:COMP_POINT} url\n"
         "  url=${line##*[[:space:]]}\n"
         "  if [[ $url == s3:* ]]; then\n"
         "    local IFS=$'\\n'\n"
         "    COMPREPLY=($(compgen -W \"$(millrace complete-url \"$url\" 2>/dev/null)\" -- \"$url\"))\n"
         "    [[ $COMP_WORDBREAKS != *:* ]] || COMPREPLY=(\"${COMPREPLY[@]#s3:}\")  # bash has split the word there\n"
         "    compopt -o nospace 2>/dev/null\n"
         "  elif [[ -n $values ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$values\" -- \"$current\"))\n"
         "  elif [[ $current == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$flags\" -- \"$current\"))\n"
         "  elif [[ -n $commands ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$commands\" -- \"$current\"))\n"
         "  else\n"
         "    case $path in\n"
         "      " +
         JobPattern() +
         ") COMPREPLY=($(compgen -W \"$(millrace complete-job 2>/dev/null)\" -- \"$current\")) ;;\n"
         "      *) COMPREPLY=($(compgen -f -- \"$current\")) ;;\n"
         "    esac\n"
         "  fi\n"
         "}\n"
         "_millrace_values() {\n"
         "  case $1 in\n" +
         CaseOfValues(commands, "    ") +
         "  esac\n"
         "}\n"
         "_millrace_words() {\n"
         "  case $1 in\n" +
         CaseOfCommands(commands, "    ") +
         "  esac\n"
         "}\n"
         "complete -o filenames -F _millrace millrace\n";
}

std::string Zsh(const std::vector<Command>& commands) {
  return "#compdef millrace\n"
         "# zsh completion for millrace: source <(millrace completion zsh)\n"
         "_millrace_words() {\n"
         "  case $1 in\n" +
         CaseOfCommands(commands, "    ") +
         "  esac\n"
         "}\n"
         "_millrace_values() {\n"
         "  case $1 in\n" +
         CaseOfValues(commands, "    ") +
         "  esac\n"
         "}\n"
         "_millrace() {\n"
         "  local at= commands flags values= word\n"
         "  _millrace_words \"\"\n"
         "  for word in ${words[2,CURRENT-1]}; do\n"
         "    if [[ \" $commands \" == *\" $word \"* ]]; then\n"
         "      at=${at:+$at }$word\n"
         "      _millrace_words \"$at\"\n"
         "    fi\n"
         "  done\n"
         "  _millrace_values \"$at ${words[CURRENT-1]}\"\n"
         "  if [[ $PREFIX == s3:* ]]; then\n"
         "    compadd -S '' -- ${(f)\"$(millrace complete-url \"$PREFIX\" 2>/dev/null)\"}\n"
         "  elif [[ -n $values ]]; then\n"
         "    compadd -- ${=values}\n"
         "  elif [[ $PREFIX == -* ]]; then\n"
         "    compadd -- ${=flags}\n"
         "  elif [[ -n $commands ]]; then\n"
         "    compadd -- ${=commands}\n"
         "  else\n"
         "    case $at in\n"
         "      " +
         JobPattern() +
         ") compadd -- ${(f)\"$(millrace complete-job 2>/dev/null)\"} ;;\n"
         "      *) _files ;;\n"
         "    esac\n"
         "  fi\n"
         "}\n"
         // zsh's autoload runs this whole file at the first Tab: that Tab must complete too.
         "if [[ $funcstack[1] == _millrace ]]; then\n"
         "  _millrace \"$@\"\n"
         "else\n"
         "  (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"
         "  compdef _millrace millrace\n"
         "fi\n";
}

std::string Fish(const std::vector<Command>& commands) {
  std::string script =
      "# fish completion for millrace: millrace completion fish | source\n"
      "# Succeeds if the words before the cursor lead to this command.\n"
      "function __millrace_at\n"
      "  set -l path\n"
      "  for word in (commandline -opc)\n"
      "    set -l longer (string join ' ' -- $path $word)\n"
      "    contains -- \"$longer\" $__millrace_paths; and set path $longer\n"
      "  end\n"
      "  test \"$path\" = \"$argv\"\n"
      "end\n"
      "set -g __millrace_paths";
  for (const Command& command : commands) {
    if (!command.path.empty()) script += " " + Quoted(command.path, "\\'");
  }
  script +=
      "\ncomplete -c millrace -f -n 'string match -q \"s3:*\" -- (commandline -ct)' "
      "-a '(millrace complete-url (commandline -ct) 2>/dev/null)'\n";
  for (const std::string_view path : kJobCommands) {
    script +=
        fmt::format("complete -c millrace -f -n '__millrace_at {}' -a '(millrace complete-job 2>/dev/null)'\n", path);
  }
  for (const Command& command : commands) {
    const std::string condition = fmt::format("'__millrace_at {}'", command.path);
    for (const Word& word : command.commands) {
      script += fmt::format("complete -c millrace -f -n {} -a {} -d {}\n", condition, word.text,
                            Quoted(word.description, "\\'"));
    }
    for (const Word& word : command.flags) {
      bool is_long = word.text.starts_with("--");
      script += fmt::format("complete -c millrace -n {} {} {} -d {}{}\n", command.path.empty() ? "true" : condition,
                            is_long ? "-l" : "-s", word.text.substr(is_long ? 2 : 1), Quoted(word.description, "\\'"),
                            word.values.empty() ? "" : fmt::format(" -x -a '{}'", word.values));
    }
  }
  return script;
}

/// Prints the buckets, or the keys and folders of one level, that begin with `typed`. Prints no errors and stops after
/// a short deadline, because a user waits for the Tab key.
int CompleteUrl(const Context& context, const std::string& typed) {
  constexpr std::string_view kScheme = "s3://";
  Context quick = context;
  quick.globals.connect.max_attempts = 1;
  quick.globals.log_level = LogLevel::kOff;
  auto connection = quick.Connect();
  if (!connection || !typed.starts_with(kScheme)) return kExitOk;
  const object::Call call{.stop = context.stop,
                          .deadline = Deadline::After(SystemClock(), std::chrono::milliseconds(1500))};
  const std::size_t slash = typed.find('/', kScheme.size());
  if (slash == std::string::npos) {
    auto service = (*connection)->OpenService();
    auto buckets = service ? (*service)->ListBuckets(call) : std::unexpected(service.error());
    if (!buckets) return kExitOk;
    for (const auto& bucket : *buckets) {
      const std::string url = fmt::format("{}{}/", kScheme, bucket.name);
      if (url.starts_with(typed)) PrintListing("{}\n", url);
    }
    return kExitOk;
  }
  auto place = object::Locate(**connection, typed);
  if (!place) return kExitOk;
  auto page = object::List(*place->store, {.prefix = place->key, .delimiter = "/"}, call);
  if (!page) return kExitOk;
  const std::string bucket = typed.substr(0, slash + 1);
  for (const std::string& prefix : page->common_prefixes) PrintListing("{}{}\n", bucket, prefix);
  for (const object::ObjectInfo& info : page->objects) PrintListing("{}{}\n", bucket, info.key);
  return kExitOk;
}

/// Prints the names of the jobs of this machine.
int CompleteJob() {
  const auto root = jobs::StateRoot();
  if (!root) return kExitOk;
  std::error_code error;
  for (const auto& folder : std::filesystem::directory_iterator(*root / "jobs", error)) {
    PrintListing("{}\n", folder.path().filename().string());
  }
  return kExitOk;
}

}  // namespace

void AddCompletionCommand(CLI::App& app, Context& context) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = AddCommand(
      app, context, "completion", "Print a script that completes commands in your shell",
      "  source <(millrace completion bash)\n"
      "  millrace completion fish > ~/.config/fish/completions/millrace.fish\n",
      [&app, shell] {
        std::vector<Command> commands;
        Collect(app, "", commands);
        std::string script = *shell == "bash" ? Bash(commands) : *shell == "zsh" ? Zsh(commands) : Fish(commands);
        PrintListing("{}", script);
        return kExitOk;
      });
  auto typed = std::make_shared<std::string>();
  CLI::App* complete = AddCommand(app, context, "complete-url", "Print the completions of a URL", "",
                                  [&context, typed] { return CompleteUrl(context, *typed); });
  complete->group("");  // for the scripts above
  complete->add_option("URL", *typed)->required();
  AddCommand(app, context, "complete-job", "Print the names of jobs", "", CompleteJob)->group("");
  command->add_option("SHELL", *shell, "bash, zsh or fish")->required()->check(OneOf({"bash", "zsh", "fish"}));
}

}  // namespace millrace::cli
