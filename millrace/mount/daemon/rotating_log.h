// The log file of a daemon, with a bound: a store that is away for days must not fill the disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "millrace/base/log.h"

namespace millrace::mount {

/// Returns a sink that writes to standard error. When `path` is standard error's file and has more than `limit` bytes,
/// the sink renames the file to "PATH.1", in place of an older one, and opens `path` anew as standard output and error.
/// So the two files have at most twice `limit`, and one line. If the file cannot be renamed or opened, the sink goes on
/// with the file that it has. A file that somebody else has moved is left alone until it is opened anew (SIGHUP).
std::shared_ptr<LogSink> MakeRotatingLog(std::string path, std::uint64_t limit);

}  // namespace millrace::mount
