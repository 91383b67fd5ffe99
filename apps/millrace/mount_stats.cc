#include "apps/millrace/mount_stats.h"

#include <unistd.h>

#include <algorithm>

#include "millrace/base/text.h"

namespace millrace::mount {
namespace {

/// From 10 µs, an answer out of memory, to 40 s, a store that was retried.
std::vector<double> LatencyBounds() {
  std::vector<double> bounds{10e-6};
  while (bounds.back() < 30) bounds.push_back(2 * bounds.back());
  return bounds;
}

struct CacheFigure {
  std::string_view name, help;
  std::uint64_t cache::BlockCache::Stats::* value;
};
constexpr CacheFigure kCacheFigures[] = {
    {"memory_hits", "Reads answered from memory", &cache::BlockCache::Stats::memory_hits},
    {"disk_hits", "Reads answered from the disk cache", &cache::BlockCache::Stats::disk_hits},
    {"misses", "Requests to the store for data", &cache::BlockCache::Stats::misses},
    {"bytes_fetched", "Bytes that came from the store", &cache::BlockCache::Stats::bytes_fetched},
    {"evictions", "Blocks pushed out of memory", &cache::BlockCache::Stats::evictions},
    {"corrupt_blocks", "Blocks of the disk cache whose checksum was wrong", &cache::BlockCache::Stats::corrupt_blocks},
};

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

}  // namespace

MountStats::MountStats(const vfs::Tree& tree, const cache::BlockCache& cache, std::string source,
                       std::string mount_point, Json staging)
    : tree_(tree),
      cache_(cache),
      source_(std::move(source)),
      mount_point_(std::move(mount_point)),
      staging_(std::move(staging)),
      began_(SystemClock().Now()),
      read_bytes_(registry_.AddCounter("millrace_mount_read_bytes_total", "Bytes that programs have read")),
      written_bytes_(registry_.AddCounter("millrace_mount_written_bytes_total", "Bytes that programs have written")) {
  for (std::size_t i = 0; i < kOperationNames.size(); ++i) {
    const metrics::Labels labels = {{"operation", std::string(kOperationNames[i])}};
    operations_[i] = {
        .seconds = &registry_.AddHistogram("millrace_mount_operation_seconds", "Time from request to reply",
                                           LatencyBounds(), labels),
        .failures = &registry_.AddCounter("millrace_mount_failures_total", "Requests answered with an error", labels)};
  }
}

void MountStats::CountFailure(std::string_view operation) {
  auto at = std::find(kOperationNames.begin(), kOperationNames.end(), operation);
  if (at != kOperationNames.end()) operations_[static_cast<std::size_t>(at - kOperationNames.begin())].failures->Add();
}

Json MountStats::Snapshot() const {
  Json operations = Json::object();
  for (std::size_t i = 0; i < kOperationNames.size(); ++i) {
    const auto totals = operations_[i].seconds->totals();
    if (totals.count == 0) continue;
    operations[std::string(kOperationNames[i])] = {{"count", totals.count},
                                                   {"failures", operations_[i].failures->value()},
                                                   {"seconds", totals.sum},
                                                   {"p50", operations_[i].seconds->Quantile(0.5)},
                                                   {"p99", operations_[i].seconds->Quantile(0.99)}};
  }
  const cache::BlockCache::Stats cached = cache_.stats();
  Json cache = {{"memory_bytes", cached.memory_bytes}, {"memory_capacity", cache_.capacity()}};
  for (const CacheFigure& figure : kCacheFigures) cache[std::string(figure.name)] = cached.*figure.value;
  const vfs::Pending pending = tree_.pending();
  return {{"source", source_},
          {"mount_point", mount_point_},
          {"pid", ::getpid()},
          {"uptime_seconds", ToSeconds(SystemClock().Now() - began_)},
          {"data", {{"read_bytes", read_bytes_.value()}, {"written_bytes", written_bytes_.value()}}},
          {"pending",
           {{"files", pending.files},
            {"bytes", pending.bytes},
            {"waiting", pending.waiting},
            {"failing", pending.failing},
            {"failures", pending.failures},
            {"reason", pending.reason.substr(0, 1000)}}},
          {"staging", staging_},
          {"cache", std::move(cache)},
          {"operations", std::move(operations)}};
}

std::string MountStats::PrometheusText() const {
  std::string text = registry_.PrometheusText();
  auto add = [&](std::string_view name, std::string_view help, std::string_view type, std::uint64_t value) {
    text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, help, type, value);
  };
  const cache::BlockCache::Stats cached = cache_.stats();
  for (const CacheFigure& figure : kCacheFigures) {
    add(fmt::format("millrace_mount_cache_{}_total", figure.name), figure.help, "counter", cached.*figure.value);
  }
  add("millrace_mount_cache_memory_bytes", "Bytes that the cache holds in memory", "gauge", cached.memory_bytes);
  const vfs::Pending pending = tree_.pending();
  add("millrace_mount_pending_files", "Files whose content the store does not have yet", "gauge",
      static_cast<std::uint64_t>(pending.files));
  add("millrace_mount_failing_files", "Files whose publication failed and is tried again", "gauge",
      static_cast<std::uint64_t>(pending.failing));
  add("millrace_mount_background_failures_total", "Publications in the background that failed", "counter",
      pending.failures);
  add("millrace_mount_pending_bytes", "Bytes that the store does not have yet", "gauge", pending.bytes);
  return text;
}

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

}  // namespace millrace::mount
