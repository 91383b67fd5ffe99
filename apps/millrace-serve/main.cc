// `millrace-serve`: loads a model from a bucket and answers completions over HTTP until it is told to stop.
#include <fmt/ranges.h>
#include <pthread.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "apps/common/flag_checks.h"
#include "apps/common/globals.h"
#include "apps/common/output.h"
#include "apps/common/parse.h"
#include "apps/millrace-serve/adapter_flags.h"
#include "apps/millrace-serve/served_models.h"
#include "millrace/base/files/files.h"
#include "millrace/base/json.h"
#include "millrace/base/process/cores.h"
#include "millrace/base/process/cpu.h"
#include "millrace/base/text.h"
#include "millrace/engine/runtime.h"
#include "millrace/http/server/access.h"
#include "millrace/http/server/server.h"
#include "millrace/object/connection.h"
#include "millrace/object/open/open.h"
#include "millrace/serve/api/api.h"
#include "millrace/serve/chat/chat_template.h"
#include "millrace/serve/chat/model_chat.h"
#include "millrace/serve/engine/engine_model.h"

namespace millrace::cli {
namespace {

struct Arguments {
  Globals globals;
  serve::LoadOptions load;
  std::string name, listen = "127.0.0.1:8080", port_file, add_bos = "auto", grace = "30s", chat_template = "auto",
                    kv_cache = "auto", max_wait = "0s", max_time = "0s";
  http::AccessOptions access;
  http::TlsFiles tls;
  std::vector<std::string> cors_origins;
  AdapterFlags adapters;
  ModelFlags models;
  int max_tokens_limit = 4096, max_concurrent = 64, max_per_key = 0, max_batch = 32, drafts = 6, threads = 0;
  bool no_page = false;
};

/// Adds the flags of the model and its weights.
void AddLoadFlags(CLI::App& app, Arguments& a) {
  app.add_option(
         "--model,model", a.load.model_url,
         "URL of a run's checkpoints, an imported checkpoint, a Hugging Face folder, a GGUF file or a model.tar.gz")
      ->required();
  app.add_option("--step", a.load.step, "The checkpoint's step (default: the newest)");
  app.add_option("--tokenizer", a.load.tokenizer_url,
                 "URL of a tokenizer file, or of a model that has one (default: the model's own)");
  app.add_option("--precision", a.load.precision, "Precision of the weights and the computation")
      ->check(OneOf({"f32", "tf32", "bf16", "fp16"}))
      ->capture_default_str();
  app.add_option("--weights", a.load.weights,
                 "How weights are kept and read: f32 or bf16, which replace --precision, or quantized: int8, fp8, nf4 "
                 "(default: as --precision says, or as the model's files have them)")
      ->check(OneOf({"f32", "bf16", "int8", "fp8", "nf4"}));
  app.add_option("--device", a.load.device, "Where it computes: an NVIDIA GPU if there is one (auto), cpu, or cuda")
      ->check(OneOf({"auto", "cpu", "cuda"}))
      ->capture_default_str();
}

/// Adds the flags of the HTTP server.
void AddServerFlags(CLI::App& app, Arguments& a) {
  app.add_option("--name", a.name, "The model's name in requests (default: the last part of its URL)");
  app.add_option("--listen", a.listen, "HOST:PORT; port 0 chooses a free port")->capture_default_str();
  app.add_option("--api-key-file", a.access.key_file,
                 "Require a key of this file, except for /ping and /health (one key per line; other users must not be "
                 "able to read the file)");
  app.add_flag("--insecure", a.access.insecure,
               "Listen beyond loopback without keys, and take requests of any web page, for platforms that check the "
               "callers themselves");
  app.add_option("--tls-cert", a.tls.certificate,
                 "Encrypt with this certificate, in PEM, with the chain behind it; SIGHUP reads the files anew");
  app.add_option("--tls-key", a.tls.key,
                 "The certificate's key, in PEM; other users must not be able to read the file");
  app.add_option("--cors-origin", a.cors_origins,
                 "Let web pages of this origin use the server, such as https://app.example.org; may be repeated")
      ->expected(1)
      ->take_all();
  app.add_flag("--no-page", a.no_page, "Serve the API without the chat page at /");
  app.add_option("--port-file", a.port_file, "Write the port to this file when the server accepts requests");
}

/// Adds the flags that bound requests.
void AddLimitFlags(CLI::App& app, Arguments& a) {
  app.add_option("--max-tokens-limit", a.max_tokens_limit, "The largest max_tokens of a request")
      ->check(Between(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-concurrent", a.max_concurrent,
                 "Most completions that run or wait; further requests get status 429")
      ->check(Between(1, 1 << 16))
      ->capture_default_str();
  app.add_option(
         "--max-per-key", a.max_per_key,
         "Most completions of one API key that run or wait; 0: half of --max-concurrent if there are several keys")
      ->check(Between(0, 1 << 16))
      ->capture_default_str();
  app.add_option("--max-wait", a.max_wait,
                 "Longest wait of a request for its turn, such as 30s; then it gets status 429. 0s: no limit")
      ->capture_default_str();
  app.add_option("--max-time", a.max_time,
                 "Longest time from a request to the end of its answer; then it gets status 504. 0s: no limit")
      ->capture_default_str();
  app.add_option("--max-batch", a.max_batch, "Most completions that the model works on at a time")
      ->check(Between(1, 1 << 12))
      ->capture_default_str();
}

/// Adds the flags of the computation and of prompts.
void AddGenerationFlags(CLI::App& app, Arguments& a) {
  AddModelFlags(app, a.models);
  app.add_option("--draft-tokens", a.drafts,
                 "Most tokens guessed at a time, by --draft or from what a text repeats, while few texts are made; 0: "
                 "none")
      ->check(Between(0, 64))
      ->capture_default_str();
  app.add_option("--kv-cache", a.kv_cache,
                 "Memory for the keys and values of all completions: 4GiB, or what 8 of full length take (auto)")
      ->capture_default_str();
  app.add_option("--kv-cache-dtype", a.load.kv_cache_dtype,
                 "How keys and values are kept: in the type of the computation (auto), or as 8-bit integers, on a CPU")
      ->check(OneOf({"auto", "int8"}))
      ->capture_default_str();
  app.add_option("--threads", a.threads, "Compute threads; 0: OMP_NUM_THREADS, or one per core that may be used")
      ->check(Between(0, 1024))
      ->capture_default_str();
  app.add_option("--add-bos", a.add_bos, "Begin text prompts with the beginning-of-text token: auto, on, off")
      ->check(OneOf({"auto", "on", "off"}))
      ->capture_default_str();
  app.add_option("--chat-template", a.chat_template,
                 "How conversations are written: a file in Jinja or a tokenizer_config.json (a path, s3:// or hf://), "
                 "one of plain, chatml, llama2, llama3, "
                 "zephyr, gemma and guanaco, or the model's own, and plain for models without one (auto)")
      ->capture_default_str();
  app.add_option("--grace", a.grace, "Time for open requests to finish after SIGTERM")->capture_default_str();
}

void AddFlags(CLI::App& app, Arguments& a) {
  AddGlobalFlags(app, a.globals);
  AddLoadFlags(app, a);
  AddAdapterFlags(app, a.adapters);
  AddServerFlags(app, a);
  AddLimitFlags(app, a);
  AddGenerationFlags(app, a);
  app.footer(
      "Examples:\n"
      "  millrace serve s3://runs/llama-demo\n"
      "  millrace serve s3://models/llama-2-7b --precision bf16 --listen 0.0.0.0:8000 --api-key-file keys\n"
      "  millrace serve s3://models/llama-2-7b --adapter french=s3://runs/french --adapters s3://adapters/llama-2-7b/\n"
      "  curl localhost:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}'\n"
      "  curl localhost:8080/v1/completions -d '{\"prompt\": \"Once\", \"max_tokens\": 32, \"stream\": true}'");
}

/// Returns how conversations are written: as `wanted` says, a name or a file, or as the model's files do.
Result<std::shared_ptr<const serve::ChatTemplate>> ChooseChatTemplate(object::Connection& connection,
                                                                      const std::string& wanted,
                                                                      const serve::LoadedModel& loaded, bool add_bos,
                                                                      const object::Call& call) {
  serve::ChatTemplateSource source = loaded.chat;
  const std::string name = wanted == "auto" && source.text.empty() ? "plain" : wanted;
  if (auto built_in = serve::BuiltInChatTemplate(name)) {
    built_in->variables = source.variables;
    source = *std::move(built_in);
  } else if (name != "auto") {
    auto file = MR_TRY(serve::ReadTemplateFile(connection, name, call));
    if (!file) {
      return Fail(Code::kNotFound, "--chat-template: there is no file {}, and no template of that name; there are {}",
                  name, fmt::join(serve::BuiltInChatTemplates(), ", "));
    }
    file->variables = source.variables;
    source = *std::move(file);
  }
  source.variables["add_bos"] = add_bos;
  auto made = serve::ChatTemplate::Make(source, *loaded.tokenizer);
  if (!made) {
    return std::unexpected(
        made.error().Context(fmt::format("the chat template {} does not work here; give another with --chat-template",
                                         name == "auto" ? "of " + loaded.source : name)));
  }
  return std::make_shared<const serve::ChatTemplate>(*std::move(made));
}

/// "s3://runs/llama-demo/" is called llama-demo, and so is "s3://runs/llama-demo/model.tar.gz".
std::string NameOf(std::string url) {
  for (const std::string_view end : {"/model.tar.gz", ".tar.gz", ".tgz"}) {
    if (url.size() > end.size() && url.ends_with(end)) url.erase(url.size() - end.size());
  }
  while (url.ends_with('/')) url.pop_back();
  return url.substr(url.find_last_of('/') + 1);
}

void Announce(const Arguments& a, const serve::LoadedModel& loaded, const std::string& name,
              const http::Server& server) {
  if (a.globals.json) {
    Json ready = {{"event", "ready"},      {"address", server.address()},     {"model", name},
                  {"from", loaded.source}, {"parameters", loaded.parameters}, {"device", loaded.device}};
    Print("{}\n", DumpJson(ready));
    FlushOutput();
  } else if (!a.globals.quiet) {
    PrintError("millrace serve: {} ({} parameters, from {}) at {}://{}/v1\n", name,
               FormatCount(static_cast<std::uint64_t>(loaded.parameters)), loaded.source,
               a.tls.certificate.empty() ? "http" : "https", server.address());
    if (!a.no_page) {
      PrintError("millrace serve: chat with it in a browser at {}://{}/\n",
                 a.tls.certificate.empty() ? "http" : "https", server.address());
    }
  }
}

void MaskHangup(int how) {
  sigset_t hangup;
  sigemptyset(&hangup);
  sigaddset(&hangup, SIGHUP);
  pthread_sigmask(how, &hangup, nullptr);
}

/// Calls a function on a thread of its own whenever the process gets SIGHUP. REQUIRES: all threads block SIGHUP.
class HangupWatch {
 public:
  explicit HangupWatch(std::function<void()> call)
      : thread_([this, call = std::move(call)] {
          sigset_t hangup;
          sigemptyset(&hangup);
          sigaddset(&hangup, SIGHUP);
          for (int received = 0; sigwait(&hangup, &received) == 0 && !ends_;) call();
        }) {}
  HangupWatch(const HangupWatch&) = delete;
  HangupWatch& operator=(const HangupWatch&) = delete;
  ~HangupWatch() {
    ends_ = true;
    pthread_kill(thread_.native_handle(), SIGHUP);
    thread_.join();
  }

 private:
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

Result<Duration> ParseFlag(std::string_view flag, const std::string& value) {
  auto duration = ParseDuration(value);
  if (!duration) return Fail(duration.error().code(), "{}: {}", flag, duration.error().message());
  return duration;
}

Result<serve::LoadOptions> LoadOptionsOf(const Arguments& a) {
  serve::LoadOptions load = a.load;
  if (a.kv_cache != "auto") {
    const auto bytes = ParseBytes(a.kv_cache);
    if (!bytes) return Fail(bytes.error().code(), "--kv-cache: {}", bytes.error().ToString());
    load.kv_cache_bytes = *bytes;
  }
  if (a.models.follow && a.adapters.any()) {
    return Fail(Code::kInvalidArgument, "--follow changes the weights under adapters; leave one of them out");
  }
  load.is_followed = a.models.follow;
  return load;
}

/// `users`: how many keys there are. One of several users leaves places to the others.
serve::Scheduler::Options SchedulingOf(const Arguments& a, std::size_t users) {
  const int shared = users > 1 ? std::max(1, a.max_concurrent / 2) : 0;
  return {.max_admitted = a.max_concurrent,
          .max_of_user = a.max_per_key > 0 ? a.max_per_key : shared,
          .max_running = a.max_batch,
          .drafts = a.drafts};
}

/// REQUIRES: `api` outlives the server.
Result<std::unique_ptr<http::Server>> StartServer(const Arguments& a, std::shared_ptr<http::TlsIdentity> tls,
                                                  const http::AllowedOrigins& origins, serve::Api& api,
                                                  const Logger& log) {
  http::Server::Options options{.listen = a.listen};
  options.log = log;
  options.tls = std::move(tls);
  return http::Server::Start(std::move(options), http::ShareWith(origins, [&api](auto& request, auto& response) {
                               api.Handle(request, response);
                             }));
}

/// Reads the files of a certificate anew at each SIGHUP. REQUIRES: `tls` and `log` outlive the watch.
std::unique_ptr<HangupWatch> RenewOnHangup(http::TlsIdentity& tls, Logger& log) {
  return std::make_unique<HangupWatch>([&log, &tls] {
    if (auto read = tls.Reload(); !read) {
      log.Error("the TLS certificate was not renewed; the old one stays", {{"error", read.error()}});
    } else {
      log.Info("the TLS certificate was read anew", {});
    }
  });
}

Status Serve(const Arguments& a, std::stop_token stop) {
  const Duration grace = MR_TRY(ParseFlag("--grace", a.grace));
  const Duration max_wait = MR_TRY(ParseFlag("--max-wait", a.max_wait));
  const Duration max_time = MR_TRY(ParseFlag("--max-time", a.max_time));
  Logger log = Logger::Stderr(a.globals.log_level);
  http::ApiKeys keys = MR_TRY(http::OpenAccess(a.listen, a.access, "--api-key-file FILE, or --insecure"));
  const std::shared_ptr<http::TlsIdentity> tls = MR_TRY(http::OpenTls(a.tls));
  const http::AllowedOrigins origins = MR_TRY(http::AllowedOrigins::Parse(a.cors_origins));
  engine::ConfigureRuntime(a.threads > 0 ? a.threads : ComputeThreads());
  object::ConnectOptions connect = a.globals.connect;
  connect.log = log;
  if (!connect.first_contact) connect.first_contact = kFirstContact;
  auto connection = MR_TRY(object::OpenConnection(std::move(connect)));
  const ModelLoader loader(*connection, MR_TRY(LoadOptionsOf(a)), a.models, SchedulingOf(a, keys.size()), log);
  auto first = MR_TRY(loader.Load(std::nullopt, {.stop = stop, .deadline = {}}));
  const serve::LoadedModel& loaded = first.facts;
  serve::ServedScheduler scheduler(std::move(first.scheduler));
  const std::string name = a.name.empty() ? NameOf(a.load.model_url) : a.name;
  const bool add_bos = a.add_bos == "on" || (a.add_bos == "auto" && loaded.add_bos);
  auto chat = MR_TRY(ChooseChatTemplate(*connection, a.chat_template, loaded, add_bos, {.stop = stop, .deadline = {}}));
  auto adapters = MR_TRY(OpenAdapters(*connection, a.adapters, loaded, name, log));
  if (a.models.follow) first.facts.load_adapter = nullptr;  // it would keep the first model's weights
  const auto follower = MR_TRY(loader.Follow(first, scheduler));
  serve::Api api(scheduler, *loaded.tokenizer, SystemClock(),
                 {.model_name = name,
                  .context_length = first.context_length,
                  .generates = loaded.generates,
                  .add_bos = add_bos,
                  .embeds_bos = loaded.embeds_bos,
                  .embeds_eos = loaded.embeds_eos,
                  .ends = loaded.ends,
                  .fixed_add_bos = a.add_bos != "auto",
                  .follower = follower.get(),
                  .adapters = adapters.get(),
                  .chat = std::move(chat),
                  .limits = {.max_tokens = a.max_tokens_limit},
                  .keys = std::move(keys),
                  .page = !a.no_page,
                  .own_site_only = !a.access.insecure,
                  .origins = origins,
                  .scheme = tls ? "https" : "http",
                  .max_wait = max_wait,
                  .max_time = max_time,
                  .log = log});
  auto server = MR_TRY(StartServer(a, tls, origins, api, log));
  const std::unique_ptr<HangupWatch> renews = tls ? RenewOnHangup(*tls, log) : nullptr;
  if (!a.port_file.empty()) MR_TRY(WriteFileAtomic(a.port_file, AsBytes(fmt::format("{}\n", server->port()))));
  Announce(a, loaded, name, *server);

  SystemClock().SleepUntil(TimePoint::max(), stop);
  // Balancers ask for the health on new connections, which the server takes until the requests under way are answered.
  const TimePoint end = SystemClock().Now() + grace;
  api.Drain(end);
  server->Stop(std::max(Duration::zero(), end - SystemClock().Now()));
  return {};
}

int Main(int argc, char** argv) {
  if (auto ready = EnsureComputeEnvironment(argv); !ready) PrintError("millrace serve: {}\n", ready.error().ToString());
  MaskHangup(SIG_BLOCK);  // before the first thread; without TLS, SIGHUP ends the process as ever
  SignalStop signals;
  Arguments arguments;
  CLI::App app("Serve a model over HTTP, directly from object storage.", "millrace serve");
  app.set_version_flag("--version", "millrace " MILLRACE_VERSION);
  AddFlags(app, arguments);
  if (const auto status = ParseOrExit(app, argc, argv)) return *status;
  if (arguments.tls.certificate.empty()) MaskHangup(SIG_UNBLOCK);
  auto served = Serve(arguments, signals.token());
  if (served) return 0;
  PrintError("millrace serve: {}\n", served.error().ToString());
  return ToExitStatus(served.error().code());
}

}  // namespace
}  // namespace millrace::cli

int main(int argc, char** argv) { return millrace::cli::Main(argc, argv); }
