// `millrace stats`: what a mount is doing.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/text.h"
#include "millrace/base/threads/sync.h"
#include "millrace/mount/point/control.h"
#include "millrace/mount/point/mount_point.h"

namespace millrace::cli {
namespace {

struct StatsFlags {
  std::string directory, every;
};

/// Returns the field of a section as a number; 0 if there is none.
double Number(const Json& object, std::string_view section, std::string_view name) {
  const auto group = object.find(section);
  if (group == object.end() || !group->is_object()) return 0;
  const auto value = group->find(name);
  return value != group->end() && value->is_number() ? value->get<double>() : 0;
}

std::string FormatLatency(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.1f} s", seconds);
}

/// Returns the figures of a mount as a table. With `before`, rates and counts are those of the time between the two.
std::string FormatStats(const Json& now, const Json* before) {
  const Json nothing = Json::object();
  const Json& since = before ? *before : nothing;
  auto uptime = [](const Json& stats) { return stats.value("uptime_seconds", 0.0); };
  const double seconds = std::max(uptime(now) - uptime(since), 1e-3);
  auto change = [&](std::string_view section, std::string_view name) {
    return std::max(Number(now, section, name) - Number(since, section, name), 0.0);
  };
  auto rate = [&](std::string_view name) { return static_cast<std::uint64_t>(change("data", name) / seconds); };
  std::string text = fmt::format("{} on {} (process {}), up {:.0f} s\n", now.value("source", ""),
                                 now.value("mount_point", ""), now.value("pid", 0), uptime(now));
  text += fmt::format("read {}/s, written {}/s; {} files ({}) not in the store yet\n", FormatBytes(rate("read_bytes")),
                      FormatBytes(rate("written_bytes")), Number(now, "pending", "files"),
                      FormatBytes(static_cast<std::uint64_t>(Number(now, "pending", "bytes"))));
  if (const double failing = Number(now, "pending", "failing"); failing > 0) {
    text += fmt::format("{} of them cannot be published, and are tried again: {}\n", failing,
                        now["pending"].value("reason", ""));
  }
  const double hits = change("cache", "memory_hits") + change("cache", "disk_hits"), misses = change("cache", "misses");
  text += fmt::format("cache: {} of {} in memory; {:.0f} % hits, {} from the store\n",
                      FormatBytes(static_cast<std::uint64_t>(Number(now, "cache", "memory_bytes"))),
                      FormatBytes(static_cast<std::uint64_t>(Number(now, "cache", "memory_capacity"))),
                      hits + misses > 0 ? 100 * hits / (hits + misses) : 0,
                      FormatBytes(static_cast<std::uint64_t>(change("cache", "bytes_fetched"))));
  text += fmt::format("{:<10} {:>10} {:>9} {:>10} {:>10} {:>10} {:>8}\n", "operation", "count", "per s", "mean", "p50",
                      "p99", "failed");
  const Json& operations = now.contains("operations") ? now["operations"] : nothing;
  const Json& earlier = since.contains("operations") ? since["operations"] : nothing;
  for (const auto& [name, figures] : operations.items()) {
    const double count = Number(operations, name, "count") - Number(earlier, name, "count");
    const double spent = Number(operations, name, "seconds") - Number(earlier, name, "seconds");
    if (count <= 0) continue;
    text += fmt::format("{:<10} {:>10.0f} {:>9.1f} {:>10} {:>10} {:>10} {:>8.0f}\n", name, count, count / seconds,
                        FormatLatency(spent / count), FormatLatency(Number(operations, name, "p50")),
                        FormatLatency(Number(operations, name, "p99")),
                        Number(operations, name, "failures") - Number(earlier, name, "failures"));
  }
  return text;
}

Status Show(const Context& context, const Json& now, const Json* before) {
  if (context.globals.json) {
    PrintJsonListing(now);
    return {};
  }
  if (before != nullptr && ::isatty(STDOUT_FILENO)) WriteControls("\033[H\033[J");
  PrintListing("{}", FormatStats(now, before));
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
      AddCommand(app, context, "stats", "Show what a mount is doing: rates, latencies, cache, unsaved files",
                 "  millrace stats /mnt/corpus\n"
                 "  millrace stats /mnt/corpus --every 2s\n"
                 "  millrace stats /mnt/corpus --json | jq .operations.read",
                 [&context, flags] {
                   Status done = RunStats(context, *flags);
                   return done ? kExitOk : ReportError(context, done.error());
                 });
  stats->add_option("directory", flags->directory, "The mount point")->required();
  stats->add_option("--every", flags->every, "Repeat at this interval, such as 2s; show the figures of each interval");
}

}  // namespace millrace::cli
