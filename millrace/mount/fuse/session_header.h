// The header of a mount's session log: what another process must know before it reads the rest.
#pragma once

#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/mount/fuse/resumable_session.h"

namespace millrace::mount {

struct SessionHeader {
  std::string source;  ///< the URL
  WallTime began;      ///< TreeOptions::began
  SessionStart start;
};

std::string FormatHeader(const SessionHeader& header);
/// Errors: kCorrupt if it is no header.
Result<SessionHeader> ParseHeader(const std::string& text);

}  // namespace millrace::mount
