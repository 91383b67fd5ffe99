// run: a file of object commands, several at a time over one connection.
#include <fstream>
#include <iostream>

#include "apps/common/flag_checks.h"
#include "apps/millrace/objects/object_commands.h"
#include "millrace/base/text.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"

namespace millrace::cli {
namespace {

struct RunFlags {
  std::string file = "-";
  int workers = 8;
};

/// Splits a line into words as a shell does: blanks separate words, quotes and backslashes protect blanks, and "#" at
/// the start of a word begins a comment. Does not expand variables or wildcards; the commands expand wildcards.
Result<std::vector<std::string>> ShellWords(std::string_view line) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    char c = line[i];
    if (!quote && !in_word && c == '#') break;
    if (!quote && (c == ' ' || c == '\t' || c == '\r')) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (!quote && (c == '"' || c == '\'')) {
      quote = c;
    } else if (quote && c == quote) {
      quote = 0;
    } else if (c == '\\' && quote != '\'' && i + 1 < line.size()) {
      words.back() += line[++i];
    } else {
      words.back() += c;
    }
  }
  if (quote) return Fail(Code::kInvalidArgument, "a quote is not closed; end the argument with the same quote");
  return words;
}

/// Runs one line as if it were typed after `millrace`, with the global flags of `run` itself.
Result<int> RunLine(const Context& outer, object::Connection& connection, std::string_view line,
                    const std::string& origin) {
  std::vector<std::string> words = MR_TRY(ShellWords(line));
  if (words.empty()) return kExitOk;
  if (words.front() == "run") return Fail(Code::kInvalidArgument, "a file of commands cannot contain `run`");
  Context context = outer;
  context.shared_connection = &connection;
  context.origin = origin;
  context.globals.progress = "off";
  context.globals.connect.concurrency = std::min(outer.globals.connect.concurrency, 8);  // threads of this line
  context.run = nullptr;
  CLI::App app;
  app.require_subcommand(1);
  app.allow_windows_style_options(false);
  AddObjectCommands(app, context);
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  if (std::ranges::find(names, words.front()) == names.end()) {
    const std::vector<std::string_view> views(names.begin(), names.end());
    return Fail(Code::kInvalidArgument, "{}", UnknownName("command", words.front(), views));
  }
  std::ranges::reverse(words);  // CLI11 takes them last first
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return Fail(Code::kInvalidArgument, "{}", error.what());
  }
  return context.run();
}

/// Counts the results of all lines.
struct Tally {
  Mutex mutex;
  std::uint64_t done MR_GUARDED_BY(mutex) = 0, failed MR_GUARDED_BY(mutex) = 0;
  int exit MR_GUARDED_BY(mutex) = kExitOk;

  void Add(int status) MR_EXCLUDES(mutex) {
    MutexLock lock(mutex);
    ++done;
    if (status == kExitOk) return;
    ++failed;
    exit = status;
  }
};

Result<int> RunFile(const Context& context, object::Connection& connection, const RunFlags& flags) {
  std::ifstream file;
  if (flags.file != "-") file.open(flags.file);
  if (flags.file != "-" && !file)
    return Fail(Code::kNotFound, "cannot read {}; check the path and its rights", flags.file);
  IgnoreBrokenPipe();  // other lines copy
  std::istream& lines = flags.file == "-" ? std::cin : file;
  Tally tally;
  {
    ThreadPool pool("run", flags.workers, static_cast<std::size_t>(flags.workers) * 4);
    std::uint64_t number = 0;
    for (std::string line; !context.stop.stop_requested() && std::getline(lines, line);) {
      pool.Submit([&, number = ++number, line = std::move(line)] {
        if (context.stop.stop_requested()) return;
        const std::string at = fmt::format("{}:{}", flags.file, number);
        auto exit = RunLine(context, connection, line, at + ": ");
        if (!exit) exit = ReportError(context, exit.error().Context(at));
        tally.Add(*exit);
      });
    }
  }
  if (context.stop.stop_requested()) return ToExitStatus(Code::kCancelled);
  MutexLock lock(tally.mutex);
  if (tally.failed == 0) return kExitOk;
  return tally.done == 1 ? tally.exit : kExitPartial;
}

}  // namespace

void AddRunCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = AddCommand(app, context, "run", "Run the object commands in a file, several at a time",
                                 "  millrace run commands.txt\n"
                                 "  printf 'cp %s s3://bucket/in/\\n' *.jsonl | millrace run -\n"
                                 "  # commands.txt: one command a line, as after `millrace`; # begins a comment\n",
                                 [&context, flags] {
                                   return WithConnection(context, [&](object::Connection& connection) {
                                     return RunFile(context, connection, *flags);
                                   });
                                 });
  command->add_option("FILE", flags->file, "Commands, one a line; - is standard input (the default)");
  command->add_option("--workers", flags->workers, "Lines that run at a time")
      ->check(Between(1, 256))
      ->capture_default_str();
}

}  // namespace millrace::cli
