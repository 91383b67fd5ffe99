#include "millrace/jobs/launchers/node_code.h"

#include <fmt/format.h>
#include <ftw.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <system_error>

#include "millrace/base/clock.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/jobs/launchers/log_follower.h"

namespace millrace::jobs {
namespace {

/// Less than the 60 s that an agent may take to start its ranks.
constexpr Duration kUnpackTime = std::chrono::seconds(45);
constexpr Duration kUnpackLeaveTime = std::chrono::seconds(5);

int RemoveEntry(const char* path, const struct stat*, int, struct FTW*) { return std::remove(path); }

/// Removes a folder. Stays in its file system: what is mounted in it is a bucket, perhaps.
Status RemoveFolder(const std::filesystem::path& folder) {
  constexpr int kOpenFolders = 16;
  if (::nftw(folder.c_str(), RemoveEntry, kOpenFolders, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) == 0 || errno == ENOENT) {
    return {};
  }
  return Fail(Code::kIo, "cannot remove {}, the code of the attempt before: {}", folder.string(),
              std::generic_category().message(errno));
}

}  // namespace

Status UnpackCode(const CodeOptions& options) {
  MR_TRY(RemoveFolder(options.folder));
  std::error_code none;
  std::filesystem::remove(options.log, none);  // the messages of an earlier attempt
  Subprocess program = MR_TRY(Subprocess::Start({.argv = {(MR_TRY(ProgramDirectory()) / "millrace").string(), "job",
                                                          "unpack-source", options.url, options.folder.string()},
                                                 .env = options.env,
                                                 .stdout_file = options.log,
                                                 .stderr_file = options.log}));
  const std::optional<ExitState> ended = program.Wait(kUnpackTime);
  if (!ended) {
    program.Stop(kUnpackLeaveTime);
    return Fail(Code::kUnavailable, "{} could not be read within {} seconds", options.url,
                kUnpackTime / std::chrono::seconds(1));
  }
  if (ended->ok()) return {};
  Code code = Code::kUnavailable;
  for (const Code each : {Code::kInvalidArgument, Code::kNotFound, Code::kPermissionDenied}) {
    if (ended->signal == 0 && ended->exit_code == ToExitStatus(each)) code = each;
  }
  constexpr int kLines = 3;
  std::string said = TailOf(options.log, 0, kLines);
  if (said.empty()) said = ended->ToString();
  return Fail(code, "the code of the job cannot be unpacked: {}", said);
}

}  // namespace millrace::jobs
