// The plan to start the daemon of a mount, also as a text for the keeper, and its start. The plan may contain the keys
// of a volume, so it is never written to a file.
#pragma once

#include <filesystem>
#include <stop_token>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/result.h"

namespace millrace::csi {

/// The plan to start the daemon of a mount, and to start it again after its death. A value type.
struct DaemonPlan {
  std::string volume, target, url;  ///< for messages
  Subprocess::Options process;      ///< its argv, environment, and files

  std::string Encode() const;
  /// Errors: kCorrupt if the text does not describe how to start a `millrace mount`.
  static Result<DaemonPlan> Decode(std::string_view text);
};

/// Starts the daemon and returns its process as soon as it reports that the mount is live (--status-fd, which this
/// adds). `log` is the file that the options send its messages to. Errors: what the daemon logged, if it ended;
/// kDeadlineExceeded if it is not live in time; kCancelled if `stop` fires. It is then killed.
Result<Subprocess> StartMountDaemon(Subprocess::Options options, const std::filesystem::path& log, Duration timeout,
                                    const std::stop_token& stop);

}  // namespace millrace::csi
