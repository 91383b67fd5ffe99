#include "apps/millrace/chat/model_server.h"

#include <utility>

#include "millrace/base/hash/random.h"
#include "millrace/base/process/cpu.h"
#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

constexpr auto kLook = std::chrono::milliseconds(20);
constexpr auto kGrace = std::chrono::seconds(10);
constexpr std::uint64_t kMaxWords = 64 * kKiB;

/// The last lines that the server wrote, without the name of the program.
std::string LastErrorLines(const std::filesystem::path& log) {
  const auto text = ReadFile(log, kMaxWords);
  if (!text) return "";
  std::string words(Trim(*text));
  constexpr std::string_view kName = "millrace serve: ";
  if (words.starts_with(kName)) words.erase(0, kName.size());
  return words;
}

/// The code whose exit status the server had, so that the chat's is the same.
Code CodeOfExit(const ExitState& state) {
  for (const Code code : {Code::kInvalidArgument, Code::kNotFound, Code::kPermissionDenied}) {
    if (state.signal == 0 && state.exit_code == ToExitStatus(code)) return code;
  }
  return Code::kUnavailable;
}

}  // namespace

Result<std::unique_ptr<ModelServer>> ModelServer::Start(const Context& context, const std::string& model,
                                                        const std::vector<std::string>& flags) {
  TempDir folder = MR_TRY(TempDir::Create());
  const std::filesystem::path key_file = folder.path() / "key", port_file = folder.path() / "port";
  std::string key = SecureHex(16);
  MR_TRY(WriteFileAtomic(key_file, AsBytes(key), 0600));
  Subprocess::Options options;
  options.argv = {(MR_TRY(ProgramDirectory()) / "millrace-serve").string(),
                  "--model",
                  model,
                  "--listen",
                  "127.0.0.1:0",
                  "--port-file",
                  port_file.string(),
                  "--api-key-file",
                  key_file.string(),
                  "--no-page"};
  options.argv.insert(options.argv.end(), flags.begin(), flags.end());
  options.env = GlobalsEnvironment(context.globals);
  options.env.merge(MissingComputeEnvironment(DetectCpu()));
  // Its words are for people, whatever this program prints.
  options.env.erase("MILLRACE_JSON");
  options.env.erase("MILLRACE_QUIET");
  options.unset_env = {"MILLRACE_JSON", "MILLRACE_QUIET"};
  options.stdout_file = options.stderr_file = folder.path() / "log";
  Subprocess process = MR_TRY(Subprocess::Start(std::move(options)));
  std::unique_ptr<ModelServer> server(new ModelServer(std::move(folder), std::move(key), std::move(process)));
  while (true) {
    if (auto port = ReadFile(port_file, 64)) {
      server->url_ = fmt::format("http://127.0.0.1:{}", Trim(*port));
      return server;
    }
    if (std::string ended = server->Ended(); !ended.empty())
      return Fail(CodeOfExit(*server->process_.Poll()), "{}", ended);
    if (!SystemClock().SleepFor(kLook, context.stop)) return Fail(Code::kCancelled, "the model was not loaded");
  }
}

ModelServer::~ModelServer() { process_.Stop(kGrace); }

std::string ModelServer::Ended() {
  const auto state = process_.Poll();
  if (!state) return "";
  const std::string words = LastErrorLines(folder_.path() / "log");
  return fmt::format("the model's server ended ({}){}{}", state->ToString(), words.empty() ? "" : ": ", words);
}

}  // namespace millrace::cli
