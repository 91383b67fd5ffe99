// The plan to start the daemon of a mount, as a text for the keeper. The plan may contain the keys of a volume, so it
// is never written to a file.
#pragma once

#include <string>
#include <string_view>

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

}  // namespace millrace::csi
