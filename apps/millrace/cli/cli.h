// The framework of the commands: global flags, the stop token of Ctrl-C, and reports of errors.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "apps/common/globals.h"
#include "apps/common/output.h"
#include "millrace/base/json.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/object/connection.h"

namespace millrace::cli {

/// Memory of a process besides the data in flight: code, connections, threads, memory that malloc keeps.
inline constexpr std::uint64_t kProcessBytes = 56 * kMiB;

/// The state that every command gets. Lives for the whole process.
struct Context {
  Globals globals;
  std::stop_token stop;                ///< fires on SIGINT, SIGTERM and SIGHUP
  std::vector<std::string> arguments;  ///< argv without argv[0]
  /// Set by `millrace run`: its commands use this connection instead of opening their own.
  object::Connection* shared_connection = nullptr;
  /// A prefix of error messages: "commands.txt:3: " in `millrace run`, else empty.
  std::string origin;
  /// The chosen command. main runs it after parsing and exits with the status that it returns.
  std::function<int()> run;

  /// Returns the part of --memory-budget for data in flight: all but kProcessBytes, or half of a small budget.
  std::uint64_t DataBudget() const;
  Logger log() const { return Logger::Stderr(globals.log_level); }
  /// Opens the connection that the global flags describe. `role` decides which SSE-C key it uses: kSources is for
  /// reading the sources of copies inside the store.
  enum class Role { kAll, kSources };
  Result<std::unique_ptr<object::Connection>> Connect(Role role = Role::kAll) const;
};

/// Standard exit statuses beyond those of ToExitStatus.
inline constexpr int kExitOk = 0, kExitFailed = 1, kExitUsage = 2, kExitPartial = 3;

/// Prints `millrace: <error>` on standard error (or an {"event":"error"} object with --json) and returns its exit
/// status.
int ReportError(const Context& context, const Error& error);
/// For a command that changes something and cannot show what it would change. `command`: "data tokenize".
/// Errors: kInvalidArgument with --dry-run.
Status RefuseDryRun(const Context& context, std::string_view command);
/// Prints a JSON object as a line on standard output, and flushes it.
void PrintJsonLine(const Json& value);
/// Prints a JSON object as a line of a listing (see WriteListing).
void PrintJsonListing(const Json& value);
/// Adds a sub-command whose callback runs `action`; `examples` are shown at the end of its --help.
CLI::App* AddCommand(CLI::App& parent, Context& context, std::string name, std::string description,
                     std::string examples, std::function<int()> action);

/// Runs a sibling program (millrace-train, millrace-serve, millrace-csi) in place of this process, with `arguments`
/// after argv[0]. Returns only on failure.
Error ExecSibling(std::string_view program, const std::vector<std::string>& arguments);

/// Adds every command below, in the order in which --help shows them (commands.cc).
void AddCommands(CLI::App& app, Context& context);

// One function per group of commands; each is in the file of its name (object_commands.cc, s3d_command.cc, …).
void AddObjectCommands(CLI::App& app, Context& context);  // ls cp mv rm sync cat pipe du head mb rb presign
void AddS3dCommand(CLI::App& app, Context& context);
void AddMountCommands(CLI::App& app, Context& context);  // mount umount
void AddStatsCommand(CLI::App& app, Context& context);
void AddTokenizerCommands(CLI::App& app, Context& context);
void AddDataCommands(CLI::App& app, Context& context);
void AddDataTokenizeCommand(CLI::App& data, Context& context);  // of the group that AddDataCommands makes
void AddDataCompactCommand(CLI::App& data, Context& context);   // of the same group
void AddCheckpointCommands(CLI::App& app, Context& context);
void AddInitCommand(CLI::App& app, Context& context);
void AddJobCommands(CLI::App& app, Context& context);   // job train serve
void AddSweepCommand(CLI::App& job, Context& context);  // of the group that AddJobCommands makes
void AddCsiCommand(CLI::App& app, Context& context);    // csi
void AddTraceCommand(CLI::App& app, Context& context);  // job trace
void AddTopCommand(CLI::App& app, Context& context);
void AddChatCommand(CLI::App& app, Context& context);
void AddSageMakerCommands(CLI::App& app, Context& context);
void AddDoctorCommand(CLI::App& app, Context& context);
void AddCompletionCommand(CLI::App& app, Context& context);

}  // namespace millrace::cli
