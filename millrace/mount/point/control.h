// Questions to the daemon of a mount: ioctls on the mount's root, which the daemon answers (fuse/ioctl_handler.cc).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::mount {

/// The answer to kDaemonStatusRequest.
struct DaemonStatus {
  std::uint64_t magic = 0;  ///< kDaemonStatusMagic
  std::int32_t pid = 0;
  std::int32_t files_being_written = 0;
  std::uint64_t bytes_being_written = 0;
};
inline constexpr std::uint64_t kDaemonStatusMagic = 0x4d494c4c52414345;  // "MILLRACE"
extern const unsigned long kDaemonStatusRequest;

/// Returns the number of this process's PID namespace; 0 without /proc.
std::uint64_t PidNamespace();

/// The answer to kDaemonStatsRequest is MountStats::Snapshot as JSON text of at most this size: an ioctl carries less
/// than 16 KiB.
inline constexpr std::size_t kMaxStatsBytes = 16'000;
extern const unsigned long kDaemonStatsRequest;

/// Asks the daemon of the mount at this path. Blocks as long as the daemon does not answer.
/// Errors: kUnsupported if it is no Millrace mount; kUnavailable if its daemon is gone.
Result<DaemonStatus> QueryDaemon(const std::string& absolute_path);

/// Returns the mount's figures (MountStats::Snapshot). Blocks and fails as QueryDaemon.
Result<Json> QueryStats(const std::string& absolute_path);

/// The answers of a daemon, and a hold of its process.
struct DaemonAnswer {
  DaemonStatus status;
  Json stats = Json::object();
  /// A pidfd (pidfd_open(2)) of the daemon: it answered after the pidfd was opened, so the number of its process cannot
  /// belong to another one. Empty if the daemon ended meanwhile, or has its number in another PID namespace.
  UniqueFd process;
};

/// Asks the daemon for all of that. Blocks and fails as QueryDaemon.
Result<DaemonAnswer> IdentifyDaemon(const std::string& absolute_path);

/// A pidfd of the process `pid`, if `ask_again` returns that number after the pidfd was opened; else empty. Without the
/// second answer, the pidfd could be that of a process that was given a dead one's number.
UniqueFd OpenAnsweringProcess(pid_t pid, const std::function<pid_t()>& ask_again);

}  // namespace millrace::mount
