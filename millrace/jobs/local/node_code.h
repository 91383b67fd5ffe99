// The code of a job on one machine: the archive of run.source, unpacked.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "millrace/base/result.h"

namespace millrace::jobs {

struct CodeOptions {
  std::string url;                         ///< of an archive (source/source_archive.h)
  std::filesystem::path folder;            ///< replaced by what is in the archive
  std::map<std::string, std::string> env;  ///< of the program that reads the store: the ranks' credentials and endpoint
  std::filesystem::path log;               ///< its messages
};

/// Runs `millrace job unpack-source`, so that this process needs no connection to the store. Blocks, for at most 45 s.
/// Errors: kInvalidArgument, kNotFound, kPermissionDenied of that program; kIo if what an earlier attempt left in the
/// folder cannot be removed; else kUnavailable: another try may help.
Status UnpackCode(const CodeOptions& options);

}  // namespace millrace::jobs
