#include "apps/millrace/cli/engine_program.h"

#include <chrono>
#include <filesystem>
#include <optional>
#include <system_error>

#include "millrace/base/process/subprocess.h"

namespace millrace::cli {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(50);
constexpr auto kEngineGrace = std::chrono::seconds(5);
constexpr std::size_t kMaxOutput = 1 * kMiB;

}  // namespace

Result<Json> AskEngine(const Context& context, std::vector<std::string> arguments) {
  const std::filesystem::path program = MR_TRY(ProgramDirectory()) / "millrace-train";
  std::error_code error;
  if (!std::filesystem::exists(program, error)) {
    return Fail(Code::kUnsupported, "the engine is not installed: there is no {}", program.string());
  }
  const std::string command = "millrace-train " + arguments.front();
  arguments.insert(arguments.begin(), program.string());
  auto child = MR_TRY(Subprocess::Start(
      {.argv = std::move(arguments), .env = GlobalsEnvironment(context.globals), .capture_stdout = true}));
  std::optional<ExitState> ended;
  while (!(ended = child.Wait(kPoll))) {
    if (!context.stop.stop_requested()) continue;
    child.Stop(kEngineGrace);
    return Fail(Code::kCancelled, "stopped");
  }
  const std::string text = MR_TRY(child.ReadStdout(kMaxOutput));
  auto answer = ParseJson(text, "the output of " + command);
  if (!answer) return Fail(Code::kInternal, "{} failed ({})", command, ended->ToString());
  if (const auto why = JsonString(*answer, "error")) return Fail(Code::kUnavailable, "{}", *why);
  return answer;
}

}  // namespace millrace::cli
