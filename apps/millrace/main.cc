// `millrace`: global flags, the choice of a command, signals, the exit status.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "apps/millrace/cli.h"
#include "millrace/base/files.h"
#include "millrace/base/subprocess.h"
#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

/// Turns SIGINT and SIGTERM into a stop token; a second one ends the process at once. Made before any other thread, so
/// that all of them inherit the blocked signals.
class SignalStop {
 public:
  SignalStop() {
    sigemptyset(&signals_);
    for (int s : {SIGINT, SIGTERM, SIGUSR2}) sigaddset(&signals_, s);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    signal(SIGPIPE, SIG_IGN);
    thread_ = std::thread([this] {
      int received = 0;
      for (int count = 0; sigwait(&signals_, &received) == 0 && received != SIGUSR2; ++count) {
        if (count > 0) _exit(130);
        stop_.request_stop();
      }
    });
  }
  ~SignalStop() {
    pthread_kill(thread_.native_handle(), SIGUSR2);
    thread_.join();
  }
  std::stop_token token() const { return stop_.get_token(); }

 private:
  sigset_t signals_;
  std::stop_source stop_;
  std::thread thread_;
};

void AddGlobalFlags(CLI::App& app, Globals& g) {
  auto bytes = [](std::uint64_t& into) {
    return [&into](const std::string& text) {
      auto parsed = ParseBytes(text);
      if (!parsed) throw CLI::ValidationError(parsed.error().ToString());
      into = *parsed;
    };
  };
  const char* group = "Global";
  app.add_option("--endpoint-url", g.connect.endpoint_url, "S3 endpoint, such as http://127.0.0.1:9000")->group(group);
  app.add_option("--region", g.connect.region, "Region of the endpoint")->group(group);
  app.add_option("--profile", g.connect.profile, "Profile of the shared AWS files")->group(group);
  app.add_flag("--no-sign-request", g.connect.no_sign_request, "Anonymous access")->group(group);
  app.add_flag("--request-payer", g.connect.request_payer, "Accept the charges of requester-pays buckets")
      ->group(group);
  app.add_option("--ca-bundle", g.connect.ca_bundle, "Certificate authorities (PEM) to trust")->group(group);
  auto* path =
      app.add_flag_callback("--path-style", [&g] { g.connect.path_style = true; }, "Bucket in the path of the request");
  auto* virtual_host = app.add_flag_callback(
      "--virtual-host", [&g] { g.connect.path_style = false; }, "Bucket in the host name of the request");
  path->excludes(virtual_host)->group(group);
  virtual_host->group(group);
  app.add_option("--concurrency", g.connect.concurrency, "Connections to the endpoint")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->group(group);
  app.add_option_function<std::string>("--bandwidth", bytes(g.connect.bandwidth), "Bytes a second each way, e.g. 100MB")
      ->group(group);
  app.add_option_function<std::string>("--memory-budget", bytes(g.memory_budget),
                                       "Memory for data in flight (default 512MiB)")
      ->group(group);
  app.add_option_function<std::string>(
         "--log-level",
         [&g](const std::string& name) {
           auto level = ParseLogLevel(name);
           if (!level) throw CLI::ValidationError(level.error().ToString());
           g.log_level = *level;
         },
         "debug, info, warning, error, off")
      ->group(group);
  app.add_flag("--json", g.json, "One JSON object a line on standard output")->group(group);
  app.add_flag("--dry-run", g.dry_run, "Say what would be done, change nothing")->group(group);
  app.add_flag("--quiet", g.quiet, "No progress, no summaries")->group(group);
  app.add_option("--progress", g.progress, "auto, on, off")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str()
      ->group(group);
  for (CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || option->get_lnames().front() == "help") continue;
    std::string name = "MILLRACE_" + option->get_lnames().front();
    for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    option->envname(name);
  }
}

/// The words a user may have meant when `command` did not know `word`.
std::string Suggestion(const CLI::App& command, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    if (app == &command)
      for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; }))
        names.push_back(sub->get_name());
  }
  std::vector<std::string_view> views(names.begin(), names.end());
  return UnknownName(word.starts_with('-') ? "flag" : command.get_parent() ? "argument" : "command", word, views);
}

const CLI::App& ChosenCommand(const CLI::App& app) {
  auto chosen = app.get_subcommands();
  return chosen.empty() ? app : ChosenCommand(*chosen.front());
}

int Main(int argc, char** argv) {
  SignalStop signals;
  Context context;
  context.stop = signals.token();
  context.arguments.assign(argv + 1, argv + argc);

  CLI::App app("Train language models straight from object storage.", "millrace");
  app.set_version_flag("--version", "millrace " MILLRACE_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  AddGlobalFlags(app, context.globals);
  AddCommands(app, context);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    const CLI::App& chosen = ChosenCommand(app);
    auto rest = app.remaining(true);
    std::string word = rest.empty() ? "" : rest.front();
    fmt::print(stderr, "millrace: {}; see `{} --help`\n", Suggestion(chosen, word),
               chosen.get_parent() ? "millrace " + chosen.get_name() : "millrace");
    return kExitUsage;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const CLI::App& chosen = ChosenCommand(app);
    fmt::print(stderr, "millrace: {}; see `millrace{}{} --help`\n", error.what(), chosen.get_parent() ? " " : "",
               chosen.get_parent() ? chosen.get_name() : "");
    return kExitUsage;
  }
  return context.run();
}

}  // namespace
}  // namespace millrace::cli

int main(int argc, char** argv) { return millrace::cli::Main(argc, argv); }
