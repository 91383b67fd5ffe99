#include "apps/common/globals.h"

#include <unistd.h>

#include <array>
#include <cctype>

#include "apps/common/flag_checks.h"
#include "millrace/base/files/files.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"

namespace millrace::cli {

namespace {

/// Makes the first SIGHUP a SIGTERM. A closing terminal may send more than one, and a second SIGTERM ends the process
/// at once.
void OnHangup(int /*signal*/) {
  ::signal(SIGHUP, SIG_IGN);
  ::kill(::getpid(), SIGTERM);
}

/// Replaces the default of SIGHUP. A program that nohup started ignores the signal, and goes on to.
void HandleHangup() {
  struct sigaction action{};
  ::sigaction(SIGHUP, nullptr, &action);
  if (action.sa_handler != SIG_DFL) return;
  action.sa_handler = &OnHangup;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGHUP, &action, nullptr);
}

}  // namespace

SignalStop::SignalStop() {
  sigemptyset(&signals_);
  for (int s : {SIGINT, SIGTERM, SIGUSR2}) sigaddset(&signals_, s);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  signal(SIGPIPE, SIG_IGN);
  HandleHangup();
  thread_ = std::thread([this] {
    int received = 0;
    for (int count = 0; sigwait(&signals_, &received) == 0 && received != SIGUSR2; ++count) {
      if (count > 0) _exit(130);
      stop_.request_stop();
    }
  });
}

SignalStop::~SignalStop() {
  pthread_kill(thread_.native_handle(), SIGUSR2);
  thread_.join();
}

Result<std::string> ReadCustomerKey(const std::string& path) {
  constexpr std::size_t kKeyBytes = 32, kMaxBytes = 256;
  std::string text = MR_TRY(ReadFile(path, kMaxBytes));
  if (text.size() == kKeyBytes) return text;
  const std::string_view line = Trim(text);
  for (const auto& decoded : {HexDecode(line), Base64Decode(line)}) {
    if (decoded && decoded->size() == kKeyBytes) return std::string(AsText(*decoded));
  }
  return Fail(
      Code::kInvalidArgument,
      "{} holds no key for SSE-C: expected 32 bytes, or a line of their base64 or hex form, as of `openssl rand "
      "-base64 32`",
      path);
}

void AddGlobalFlags(CLI::App& app, Globals& g) {
  auto bytes = [](std::uint64_t& into) {
    return [&into](const std::string& text) {
      auto parsed = ParseBytes(text);
      if (!parsed) throw CLI::ValidationError(parsed.error().ToString());
      into = *parsed;
    };
  };
  const char* group = "Global flags";
  app.add_option("--endpoint-url", g.connect.endpoint_url, "S3 endpoint, such as http://127.0.0.1:9000")->group(group);
  app.add_option("--region", g.connect.region, "Region of the endpoint")->group(group);
  app.add_option("--profile", g.connect.profile, "Profile in ~/.aws/config and ~/.aws/credentials")->group(group);
  app.add_flag("--no-sign-request", g.connect.no_sign_request, "Send unsigned requests, for public buckets")
      ->group(group);
  app.add_flag("--request-payer", g.connect.request_payer, "Accept the charges of requester-pays buckets")
      ->group(group);
  app.add_option("--ca-bundle", g.connect.ca_bundle, "PEM file of the certificate authorities to trust")->group(group);
  app.add_flag_callback(
         "--no-verify-ssl", [&g] { g.connect.verify_tls = false; },
         "Believe any certificate of the endpoint, with a warning: others may read and change everything")
      ->group(group);
  app.add_option("--sse-c-key-file", g.sse_c_key_file,
                 "File with the SSE-C key of the objects that are written and read")
      ->group(group);
  app.add_option(
         "--sse-c-source-key-file", g.sse_c_source_key_file,
         "File with the SSE-C key of the sources of copies inside the store (default: the same key; none: no SSE-C)")
      ->group(group);
  auto* path = app.add_flag_callback(
      "--path-style", [&g] { g.connect.path_style = true; }, "URLs of the form https://HOST/BUCKET/KEY");
  auto* virtual_host = app.add_flag_callback(
      "--virtual-host", [&g] { g.connect.path_style = false; }, "URLs of the form https://BUCKET.HOST/KEY");
  path->excludes(virtual_host)->group(group);
  virtual_host->group(group);
  app.add_option_function<std::string>(
         "--wait-for-endpoint",
         [&g](const std::string& text) {
           auto parsed = ParseDuration(text);
           if (!parsed) throw CLI::ValidationError("--wait-for-endpoint: " + parsed.error().ToString());
           g.connect.first_contact = *parsed;
         },
         "How long to wait for an endpoint that does not answer yet, such as 5m for one that still starts (default: "
         "3s)")
      ->type_name("DURATION")
      ->group(group);
  app.add_option("--concurrency", g.connect.concurrency, "Most connections to the endpoint")
      ->check(Between(1, 1024))
      ->capture_default_str()
      ->group(group);
  app.add_option_function<std::string>("--bandwidth", bytes(g.connect.bandwidth),
                                       "Most bytes per second in each direction, e.g. 100MB")
      ->group(group);
  app.add_option_function<std::string>("--memory-budget", bytes(g.memory_budget),
                                       "Most memory for data in flight (default: 512MiB)")
      ->group(group);
  app.add_option_function<std::string>(
         "--log-level",
         [&g](const std::string& name) {
           auto level = ParseLogLevel(name);
           if (!level) throw CLI::ValidationError(level.error().ToString());
           g.log_level = *level;
         },
         "Least level of log messages: debug, info, warning, error, off (default: warning)")
      ->group(group);
  app.add_flag("--json", g.json, "Print one JSON object per line on standard output")->group(group);
  app.add_flag("--dry-run", g.dry_run, "Print what would be done; change nothing")->group(group);
  app.add_flag("--quiet", g.quiet, "Print no progress and no summaries")->group(group);
  app.add_option("--progress", g.progress, "Show progress: auto (on a terminal), on, off")
      ->check(OneOf({"auto", "on", "off"}))
      ->capture_default_str()
      ->group(group);
  for (CLI::Option* option : app.get_options()) {
    if (option->get_group() != group) continue;  // --help and --version
    std::string name = "MILLRACE_" + option->get_lnames().front();
    for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    option->envname(name);
  }
}

std::map<std::string, std::string> GlobalsEnvironment(const Globals& g) {
  const Globals defaults;
  std::map<std::string, std::string> env;
  auto add = [&env](const char* name, const auto& value, const auto& usual) {
    if (value != usual) env[name] = fmt::format("{}", value);
  };
  add("MILLRACE_ENDPOINT_URL", g.connect.endpoint_url, defaults.connect.endpoint_url);
  add("MILLRACE_REGION", g.connect.region, defaults.connect.region);
  add("MILLRACE_PROFILE", g.connect.profile, defaults.connect.profile);
  add("MILLRACE_NO_SIGN_REQUEST", g.connect.no_sign_request, defaults.connect.no_sign_request);
  add("MILLRACE_REQUEST_PAYER", g.connect.request_payer, defaults.connect.request_payer);
  add("MILLRACE_CA_BUNDLE", g.connect.ca_bundle, defaults.connect.ca_bundle);
  if (!g.connect.verify_tls) env["MILLRACE_NO_VERIFY_SSL"] = "true";
  add("MILLRACE_SSE_C_KEY_FILE", g.sse_c_key_file, defaults.sse_c_key_file);
  add("MILLRACE_SSE_C_SOURCE_KEY_FILE", g.sse_c_source_key_file, defaults.sse_c_source_key_file);
  if (g.connect.path_style) env[*g.connect.path_style ? "MILLRACE_PATH_STYLE" : "MILLRACE_VIRTUAL_HOST"] = "true";
  add("MILLRACE_CONCURRENCY", g.connect.concurrency, defaults.connect.concurrency);
  if (g.connect.first_contact) {
    env["MILLRACE_WAIT_FOR_ENDPOINT"] =
        fmt::format("{}ms", std::chrono::duration_cast<std::chrono::milliseconds>(*g.connect.first_contact).count());
  }
  add("MILLRACE_BANDWIDTH", g.connect.bandwidth, defaults.connect.bandwidth);
  add("MILLRACE_MEMORY_BUDGET", g.memory_budget, defaults.memory_budget);
  add("MILLRACE_JSON", g.json, false);
  add("MILLRACE_QUIET", g.quiet, false);
  constexpr std::array<std::string_view, 5> kLevels = {"debug", "info", "warning", "error", "off"};
  if (g.log_level != defaults.log_level) env["MILLRACE_LOG_LEVEL"] = kLevels.at(static_cast<std::size_t>(g.log_level));
  return env;
}

}  // namespace millrace::cli
