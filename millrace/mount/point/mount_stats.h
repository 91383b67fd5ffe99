// Counters of what a mount has done since it began, for `millrace stats` and Prometheus.
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

/// A request of the kernel that is counted and timed.
enum class MountOperation : std::uint8_t {
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
inline constexpr std::array<std::string_view, 16> kMountOperationNames = {
    "lookup", "stat",    "setattr", "open",     "create", "read",   "write", "close",
    "fsync",  "release", "readdir", "getxattr", "mkdir",  "unlink", "rmdir", "rename"};

/// The counters of one mount. Thread-safe; counting takes no lock. Tree and cache must outlive it.
class MountStats {
 public:
  MountStats(const vfs::Tree& tree, const cache::BlockCache& cache, std::string source, std::string mount_point,
             Json staging);

  /// Counts one request that took `took`, failed or not.
  void Count(MountOperation operation, Duration took) { of(operation).seconds->Observe(SecondsOf(took)); }
  /// Counts a failure of the operation of that name (kMountOperationNames). Other names are not counted.
  void CountFailure(std::string_view operation);
  void CountRead(std::uint64_t bytes) { read_bytes_.Add(bytes); }
  void CountWrite(std::uint64_t bytes) { written_bytes_.Add(bytes); }

  /// Returns all figures as one object, at most kMaxStatsBytes (control.h) long as text.
  Json Snapshot() const;
  /// Returns all figures in the text format of Prometheus.
  std::string PrometheusText() const;

 private:
  struct PerOperation {
    metrics::Histogram* seconds;
    metrics::Counter* failures;
  };
  PerOperation& of(MountOperation operation) { return operations_[static_cast<std::size_t>(operation)]; }

  // Constant after construction.
  const vfs::Tree& tree_;
  const cache::BlockCache& cache_;
  const std::string source_, mount_point_;
  const Json staging_;  ///< {"directory", "target"}: where written files wait for the store
  const TimePoint began_;

  // Thread-safe.
  metrics::Registry registry_;
  std::array<PerOperation, kMountOperationNames.size()> operations_;
  metrics::Counter& read_bytes_;
  metrics::Counter& written_bytes_;
};

}  // namespace millrace::mount
