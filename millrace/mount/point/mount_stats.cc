#include "millrace/mount/point/mount_stats.h"

#include <unistd.h>

#include <algorithm>

#include "millrace/mount/point/control.h"

namespace millrace::mount {
namespace {

/// Bounds of the histogram: from 10 µs (an answer from memory) to 40 s (a request that was retried).
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
  for (std::size_t i = 0; i < kMountOperationNames.size(); ++i) {
    const metrics::Labels labels = {{"operation", std::string(kMountOperationNames[i])}};
    operations_[i] = {
        .seconds = &registry_.AddHistogram("millrace_mount_operation_seconds", "Time from request to reply",
                                           LatencyBounds(), labels),
        .failures = &registry_.AddCounter("millrace_mount_failures_total", "Requests answered with an error", labels)};
  }
}

void MountStats::CountFailure(std::string_view operation) {
  auto at = std::find(kMountOperationNames.begin(), kMountOperationNames.end(), operation);
  if (at != kMountOperationNames.end())
    operations_[static_cast<std::size_t>(at - kMountOperationNames.begin())].failures->Add();
}

Json MountStats::Snapshot() const {
  Json operations = Json::object();
  for (std::size_t i = 0; i < kMountOperationNames.size(); ++i) {
    const auto totals = operations_[i].seconds->totals();
    if (totals.count == 0) continue;
    operations[std::string(kMountOperationNames[i])] = {{"count", totals.count},
                                                        {"failures", operations_[i].failures->value()},
                                                        {"seconds", totals.sum},
                                                        {"p50", operations_[i].seconds->Quantile(0.5)},
                                                        {"p99", operations_[i].seconds->Quantile(0.99)}};
  }
  const cache::BlockCache::Stats cached = cache_.stats();
  Json cache = {{"memory_bytes", cached.memory_bytes}, {"memory_capacity", cache_.capacity()}};
  for (const CacheFigure& figure : kCacheFigures) cache[std::string(figure.name)] = cached.*figure.value;
  const vfs::PendingWrites pending = tree_.pending();
  return {{"source", source_},
          {"mount_point", mount_point_},
          {"pid", ::getpid()},
          {"pid_namespace", PidNamespace()},
          {"uptime_seconds", SecondsOf(SystemClock().Now() - began_)},
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
  const vfs::PendingWrites pending = tree_.pending();
  add("millrace_mount_pending_files", "Files whose content the store does not have yet", "gauge",
      static_cast<std::uint64_t>(pending.files));
  add("millrace_mount_failing_files", "Files whose publication failed and is tried again", "gauge",
      static_cast<std::uint64_t>(pending.failing));
  add("millrace_mount_background_failures_total", "Publications in the background that failed", "counter",
      pending.failures);
  add("millrace_mount_pending_bytes", "Bytes that the store does not have yet", "gauge", pending.bytes);
  return text;
}

}  // namespace millrace::mount
