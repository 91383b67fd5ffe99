// `millrace-serve`: loads a model from a bucket and answers completions over HTTP until it is told to stop.
#include <filesystem>
#include <thread>

#include "apps/common/globals.h"
#include "apps/common/output.h"
#include "millrace/base/files/files.h"
#include "millrace/base/json.h"
#include "millrace/base/process/cpu.h"
#include "millrace/base/text.h"
#include "millrace/engine/runtime.h"
#include "millrace/http/server/access.h"
#include "millrace/http/server/server.h"
#include "millrace/object/open/open.h"
#include "millrace/serve/api.h"
#include "millrace/serve/engine/engine_model.h"

namespace millrace::cli {
namespace {

struct Arguments {
  Globals globals;
  serve::LoadOptions load;
  std::string name, listen = "127.0.0.1:8080", port_file, add_bos = "auto", grace = "30s";
  http::AccessOptions access;
  int max_tokens_limit = 4096, max_concurrent = 64, threads = 0;
};

void AddFlags(CLI::App& app, Arguments& a) {
  AddGlobalFlags(app, a.globals);
  app.add_option("--model,model", a.load.model_url,
                 "URL of a run's checkpoints, an imported checkpoint or a Hugging Face folder")
      ->required();
  app.add_option("--step", a.load.step, "The checkpoint's step (default: the newest)");
  app.add_option("--tokenizer", a.load.tokenizer_url,
                 "URL of a tokenizer file, or of a model that has one (default: the model's own)");
  app.add_option("--precision", a.load.precision, "Precision of the weights and the computation")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  app.add_option("--name", a.name, "The model's name in requests (default: the last part of its URL)");
  app.add_option("--listen", a.listen, "HOST:PORT; port 0 chooses a free port")->capture_default_str();
  app.add_option("--api-key-file", a.access.key_file,
                 "Require a key of this file, except for /ping and /health (one key per line; other users must not be "
                 "able to read the file)");
  app.add_flag("--insecure", a.access.insecure,
               "Listen beyond loopback without keys, for platforms that check the callers themselves");
  app.add_option("--port-file", a.port_file, "Write the port to this file when the server accepts requests");
  app.add_option("--max-tokens-limit", a.max_tokens_limit, "The largest max_tokens of a request")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-concurrent", a.max_concurrent,
                 "Most completions that run or wait; further requests get status 429")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--threads", a.threads, "Compute threads; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--add-bos", a.add_bos, "Begin text prompts with the beginning-of-text token: auto, on, off")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  app.add_option("--grace", a.grace, "Time for open requests to finish after SIGTERM")->capture_default_str();
  app.footer(
      "Examples:\n"
      "  millrace serve s3://runs/llama-demo\n"
      "  millrace serve s3://models/llama-2-7b --precision bf16 --listen 0.0.0.0:8000 --api-key-file keys\n"
      "  curl localhost:8080/v1/completions -d '{\"prompt\": \"Once\", \"max_tokens\": 32, \"stream\": true}'");
}

/// "s3://runs/llama-demo/" is called llama-demo.
std::string NameOf(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  return url.substr(url.find_last_of('/') + 1);
}

void Announce(const Arguments& a, const serve::LoadedModel& loaded, const std::string& name,
              const http::Server& server) {
  if (a.globals.json) {
    Json ready = {{"event", "ready"},
                  {"address", server.address()},
                  {"model", name},
                  {"from", loaded.source},
                  {"parameters", loaded.parameters}};
    Print("{}\n", DumpJson(ready));
    FlushOutput();
  } else if (!a.globals.quiet) {
    PrintError("millrace serve: {} ({} parameters, from {}) at http://{}/v1/completions\n", name,
               FormatCount(static_cast<std::uint64_t>(loaded.parameters)), loaded.source, server.address());
  }
}

Status Serve(const Arguments& a, std::stop_token stop) {
  Duration grace = MR_TRY(ParseDuration(a.grace));
  Logger log = Logger::Stderr(a.globals.log_level);
  http::ApiKeys keys = MR_TRY(http::OpenAccess(a.listen, a.access, "--api-key-file FILE, or --insecure"));
  engine::ConfigureRuntime(a.threads > 0 ? a.threads : static_cast<int>(std::thread::hardware_concurrency()));
  object::ConnectOptions connect = a.globals.connect;
  connect.log = log;
  auto connection = MR_TRY(object::OpenConnection(std::move(connect)));
  auto loaded = MR_TRY(serve::LoadModel(*connection, a.load, log, {.stop = stop, .deadline = {}}));

  serve::Scheduler scheduler(*loaded.model, {.max_admitted = a.max_concurrent});
  const std::string name = a.name.empty() ? NameOf(a.load.model_url) : a.name;
  serve::Api api(scheduler, *loaded.tokenizer, SystemClock(),
                 {.model_name = name,
                  .context_length = loaded.model->context_length(),
                  .add_bos = a.add_bos == "on" || (a.add_bos == "auto" && loaded.add_bos),
                  .limits = {.max_tokens = a.max_tokens_limit},
                  .keys = std::move(keys),
                  .log = log});
  http::Server::Options options{.listen = a.listen};
  options.log = log;
  auto server = MR_TRY(http::Server::Start(std::move(options),
                                           [&api](auto& request, auto& response) { api.Handle(request, response); }));
  if (!a.port_file.empty()) MR_TRY(WriteFileAtomic(a.port_file, AsBytes(fmt::format("{}\n", server->port()))));
  Announce(a, loaded, name, *server);

  SystemClock().SleepUntil(TimePoint::max(), stop);
  api.Drain();
  server->Stop(grace);
  return {};
}

int Main(int argc, char** argv) {
  if (auto ready = EnsureComputeEnvironment(argv); !ready) PrintError("millrace serve: {}\n", ready.error().ToString());
  SignalStop signals;
  Arguments arguments;
  CLI::App app("Serve a model over HTTP, directly from object storage.", "millrace serve");
  app.set_version_flag("--version", "millrace " MILLRACE_VERSION);
  AddFlags(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    PrintError("millrace serve: {}; see `millrace serve --help`\n", error.what());
    return 2;
  }
  auto served = Serve(arguments, signals.token());
  if (served) return 0;
  PrintError("millrace serve: {}\n", served.error().ToString());
  return ToExitStatus(served.error().code());
}

}  // namespace
}  // namespace millrace::cli

int main(int argc, char** argv) { return millrace::cli::Main(argc, argv); }
