#include "apps/millrace/cli/cli.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "apps/common/output.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/object/open/open.h"

namespace millrace::cli {

std::uint64_t Context::DataBudget() const {
  return globals.memory_budget - std::min(globals.memory_budget / 2, kProcessBytes);
}

Result<std::unique_ptr<object::Connection>> Context::Connect(Role role) const {
  object::ConnectOptions options = globals.connect;
  options.log = log();
  if (!options.verify_tls) {
    options.log.Warning("certificates of the endpoint are not verified: others may read and change everything");
  }
  if (!options.first_contact) options.first_contact = kFirstContact;
  auto read_key = [](const std::string& path) -> Result<std::string> {
    if (path.empty() || path == "none") return "";
    return ReadCustomerKey(path);
  };
  options.customer_key = MR_TRY(read_key(globals.sse_c_key_file));
  options.copy_source_key =
      globals.sse_c_source_key_file.empty() ? options.customer_key : MR_TRY(read_key(globals.sse_c_source_key_file));
  if (role == Role::kSources) options.customer_key = options.copy_source_key;
  return object::OpenConnection(std::move(options));
}

int ReportError(const Context& context, const Error& error) {
  if (context.globals.json) {
    PrintJsonLine({{"event", "error"}, {"code", CodeName(error.code())}, {"message", error.ToString()}});
  }
  PrintError("millrace: {}{}\n", context.origin, error.ToString());
  return ToExitStatus(error.code());
}

Status RefuseDryRun(const Context& context, std::string_view command) {
  if (!context.globals.dry_run) return {};
  return Fail(Code::kInvalidArgument, "`millrace {}` has no --dry-run; nothing was done", command);
}

void PrintJsonLine(const Json& value) {
  std::string line = DumpJson(value);
  line += '\n';
  WriteOutput(line);
  FlushOutput();
}

void PrintJsonListing(const Json& value) { WriteListing(DumpJson(value) + "\n"); }

CLI::App* AddCommand(CLI::App& parent, Context& context, std::string name, std::string description,
                     std::string examples, std::function<int()> action) {
  CLI::App* command = parent.add_subcommand(std::move(name), std::move(description));
  if (!examples.empty()) command->footer("Examples:\n" + std::move(examples));
  command->callback([&context, action = std::move(action)] { context.run = action; });
  return command;
}

Error ExecSibling(std::string_view program, const std::vector<std::string>& arguments) {
  auto directory = ProgramDirectory();
  if (!directory) return directory.error();
  std::string path = (*directory / program).string();
  std::vector<char*> argv{path.data()};
  std::vector<std::string> owned(arguments);
  for (std::string& argument : owned) argv.push_back(argument.data());
  argv.push_back(nullptr);
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  execv(path.c_str(), argv.data());
  return ErrnoError(errno, fmt::format("cannot run {}", path));
}

}  // namespace millrace::cli
