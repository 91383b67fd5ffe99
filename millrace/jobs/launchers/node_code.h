// Unpacks the code of a job on one machine: the archive of run.source.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "millrace/base/result.h"

namespace millrace::jobs {

/// The archive to unpack, and where.
struct CodeOptions {
  std::string url;               ///< URL of the archive (source/source_archive.h)
  std::filesystem::path folder;  ///< gets the content of the archive; its old content is removed
  /// Environment of the unpacking program: the credentials and endpoint of the ranks.
  std::map<std::string, std::string> env;
  std::filesystem::path log;  ///< gets the messages of the unpacking program
};

/// Runs `millrace job unpack-source` as another program, so that this process needs no connection to the store. Blocks
/// for at most 45 s. Errors: kInvalidArgument, kNotFound and kPermissionDenied from that program; kIo if the folder's
/// old content cannot be removed; else kUnavailable: another try may help.
Status UnpackCode(const CodeOptions& options);

}  // namespace millrace::jobs
