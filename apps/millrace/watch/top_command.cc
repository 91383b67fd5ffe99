// `millrace top`: a live view of a job.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "apps/common/output.h"
#include "apps/millrace/cli/cli.h"
#include "apps/millrace/watch/terminal.h"
#include "apps/millrace/watch/watched_job.h"
#include "millrace/base/text.h"
#include "millrace/history/top_view.h"

namespace millrace::cli {
namespace {

struct TopFlags {
  std::string target, every = "1s", key_file;
  bool once = false;
};

double NowSeconds() { return std::chrono::duration<double>(SystemClock().Wall().time_since_epoch()).count(); }

Status PrintOnce(const Context& context, JobWatcher& watcher) {
  const WatchedJob watched = MR_TRY(watcher.Read());
  if (context.globals.json) {
    PrintJsonListing(history::TopToJson(watched.job, watched.history, NowSeconds()));
    return {};
  }
  // A pipe gets all columns and all ranks.
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  const history::ViewSize size{.width = terminal ? Terminal::GetSize().width : 160, .colours = WantsColours()};
  for (const std::string& line : history::DrawTop(watched.job, watched.history, NowSeconds(), size)) {
    WriteControls(line + "\n");  // DrawTop() has made names harmless
  }
  return {};
}

std::size_t Scrolled(TerminalKey key, std::size_t first, std::size_t page, std::size_t ranks) {
  const std::size_t last = ranks > page ? ranks - page : 0;
  const std::size_t step = std::max<std::size_t>(1, page);
  if (key == TerminalKey::kUp) return first > 0 ? first - 1 : 0;
  if (key == TerminalKey::kDown) return std::min(last, first + 1);
  if (key == TerminalKey::kPageUp) return first > step ? first - step : 0;
  if (key == TerminalKey::kPageDown) return std::min(last, first + step);
  if (key == TerminalKey::kHome) return 0;
  if (key == TerminalKey::kEnd) return last;
  return std::min(first, last);
}

/// Draws until the user leaves. A look that fails is told in the view, which keeps what was seen before.
Status Watch(const Context& context, JobWatcher& watcher, Duration every) {
  WatchedJob watched = MR_TRY(watcher.Read());  // a wrong name is told on the usual screen
  std::size_t first = 0;
  TimePoint next = SystemClock().Now() + every;
  Terminal terminal;
  while (!context.stop.stop_requested() && OutputFailure() == 0) {
    const auto [width, height] = Terminal::GetSize();
    history::ViewSize size{.width = width, .height = height, .colours = WantsColours(), .keys = true};
    const std::size_t ranks = std::max(watched.job.ranks.size(), watched.history.ranks().size());
    const std::size_t page = history::RanksShown(watched.job, watched.history, size);
    size.first = first = Scrolled(TerminalKey::kNone, first, page, ranks);
    terminal.Draw(history::DrawTop(watched.job, watched.history, NowSeconds(), size));
    const TerminalKey key = terminal.ReadKey(next, context.stop);
    if (key == TerminalKey::kQuit) break;
    first = Scrolled(key, first, page, ranks);
    if (SystemClock().Now() < next) continue;
    next = SystemClock().Now() + every;
    auto read = watcher.Read();
    if (read) {
      watched = *std::move(read);
    } else {
      watched.job.message = read.error().ToString();
    }
  }
  return {};
}

Status Top(const Context& context, const TopFlags& flags) {
  const Duration every = MR_TRY(ParseDuration(flags.every));
  JobWatcher watcher = MR_TRY(JobWatcher::Open(context, flags.target, flags.key_file));
  const bool live = !flags.once && !context.globals.json && ::isatty(STDOUT_FILENO) == 1 && ::isatty(STDIN_FILENO) == 1;
  if (!live) return PrintOnce(context, watcher);
  return Watch(context, watcher, std::max<Duration>(every, std::chrono::milliseconds(100)));
}

}  // namespace

void AddTopCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<TopFlags>();
  CLI::App* top = AddCommand(app, context, "top", "Watch a job: speed, loss, what each rank waits for, checkpoints",
                             "  millrace top                          # the job that runs on this machine\n"
                             "  millrace top llama-demo\n"
                             "  millrace top s3://runs/llama-demo     # the folder of log.url\n"
                             "  millrace top http://127.0.0.1:9465    # the address of log.metrics_listen\n"
                             "  millrace --json top llama-demo --once | jq .tokens_per_s",
                             [&context, flags] {
                               const Status done = Top(context, *flags);
                               return done ? kExitOk : ReportError(context, done.error());
                             });
  top->add_option("JOB|URL", flags->target, "The job's name, the URL of its folder, or its metrics address");
  top->add_flag("--once", flags->once, "Print the view once; so does a pipe, and --json");
  top->add_option("--every", flags->every, "How often to look")->capture_default_str();
  top->add_option("--key-file", flags->key_file, "A file whose first line is a key of the metrics server");
}

}  // namespace millrace::cli
