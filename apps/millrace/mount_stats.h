// What a mount has done since it began: counted by its daemon, shown by `millrace stats` and to Prometheus.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/cache/block_cache.h"
#include "millrace/metrics/metrics.h"
#include "millrace/vfs/tree.h"

namespace millrace::mount {

/// What programs ask of a mount, as far as it is counted.
enum class Operation : std::uint8_t {
  kLookup,
  kStat,
  kSetAttributes,
  kOpen,
  kCreate,
  kRead,
  kWrite,
  kFlush,
  kSync,
  kRelease,
  kReadDirectory,
  kGetXattr,
  kMakeDirectory,
  kUnlink,
  kRemoveDirectory,
  kRename,
};
inline constexpr std::array<std::string_view, 16> kOperationNames = {
    "lookup", "stat",    "setattr", "open",     "create", "read",   "write", "close",
    "fsync",  "release", "readdir", "getxattr", "mkdir",  "unlink", "rmdir", "rename"};

/// Counters of one mount. Thread-safe; counting takes no lock. Tree and cache must outlive it.
class MountStats {
 public:
  MountStats(const vfs::Tree& tree, const cache::BlockCache& cache, std::string source, std::string mount_point,
             Json staging);

  void Count(Operation operation, Duration took) { of(operation).seconds->Observe(ToSeconds(took)); }
  void CountFailure(std::string_view operation);
  void CountRead(std::uint64_t bytes) { read_bytes_.Add(bytes); }
  void CountWrite(std::uint64_t bytes) { written_bytes_.Add(bytes); }

  /// All figures as one object, at most kMaxStatsBytes long as text.
  Json Snapshot() const;
  std::string PrometheusText() const;

 private:
  struct PerOperation {
    metrics::Histogram* seconds;
    metrics::Counter* failures;
  };
  static double ToSeconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }
  PerOperation& of(Operation operation) { return operations_[static_cast<std::size_t>(operation)]; }

  const vfs::Tree& tree_;
  const cache::BlockCache& cache_;
  const std::string source_, mount_point_;
  const Json staging_;  ///< where what is written waits
  const TimePoint began_;
  metrics::Registry registry_;
  std::array<PerOperation, kOperationNames.size()> operations_;
  metrics::Counter& read_bytes_;
  metrics::Counter& written_bytes_;
};

/// What fits into the answer of an ioctl.
inline constexpr std::size_t kMaxStatsBytes = 16'000;

/// The figures of a snapshot as a table for people; with `before`, those of the time between the two.
std::string FormatStats(const Json& now, const Json* before);

}  // namespace millrace::mount
