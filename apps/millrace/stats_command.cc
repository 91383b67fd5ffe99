// `millrace stats`: what a mount is doing.
#include <unistd.h>

#include <cstdio>

#include "apps/millrace/cli.h"
#include "apps/millrace/mount_point.h"
#include "apps/millrace/mount_stats.h"
#include "millrace/base/text.h"
#include "millrace/base/threads/sync.h"

namespace millrace::cli {
namespace {

struct StatsFlags {
  std::string directory, every;
};

Status Show(const Context& context, const Json& now, const Json* before) {
  if (context.globals.json) {
    PrintJsonListing(now);
    return {};
  }
  if (before != nullptr && ::isatty(STDOUT_FILENO)) PrintListing("\033[H\033[J");
  PrintListing("{}", mount::FormatStats(now, before));
  FlushOutput();
  return {};
}

Status RunStats(const Context& context, const StatsFlags& flags) {
  const std::string point = MR_TRY(mount::ResolveMountPoint(flags.directory));
  Json last = MR_TRY(mount::QueryStats(point));
  MR_TRY(Show(context, last, nullptr));
  if (flags.every.empty()) return {};
  const Duration every = MR_TRY(ParseDuration(flags.every));
  Mutex mutex;
  CondVar woken;
  while (!context.stop.stop_requested()) {
    {
      MutexLock lock(mutex);
      woken.WaitUntil(mutex, std::chrono::steady_clock::now() + every, context.stop, [] { return false; });
    }
    if (context.stop.stop_requested()) break;
    Json now = MR_TRY(mount::QueryStats(point));
    MR_TRY(Show(context, now, &last));
    last = std::move(now);
  }
  return {};
}

}  // namespace

void AddStatsCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<StatsFlags>();
  CLI::App* stats =
      AddCommand(app, context, "stats", "Show what a mount is doing: rates, latencies, cache, what is unsaved",
                 "  millrace stats /mnt/corpus\n"
                 "  millrace stats /mnt/corpus --every 2s\n"
                 "  millrace stats /mnt/corpus --json | jq .operations.read",
                 [&context, flags] {
                   Status done = RunStats(context, *flags);
                   return done ? kExitOk : ReportError(context, done.error());
                 });
  stats->add_option("directory", flags->directory, "The mount point")->required();
  stats->add_option("--every", flags->every, "Again and again, each time for the interval passed: 2s");
}

}  // namespace millrace::cli
