// The folders of a job on one machine: stores that are mounted while its ranks run.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/process/subprocess.h"
#include "millrace/base/result.h"
#include "millrace/jobs/spec/foreign_program.h"

namespace millrace::jobs {

/// Runs `millrace mount --foreground` for each folder. If this process dies, the mounts publish what was written and
/// end. One owner thread, as for Launcher. The destructor unmounts, waits 100 s at most for that, and removes the
/// folders that were missing.
class NodeMounts {
 public:
  struct Options {
    std::vector<FolderMount> mounts;
    std::map<std::string, std::string> env;  ///< of the programs that mount: the ranks' credentials and endpoint
    std::filesystem::path logs;              ///< folder of their messages
  };
  explicit NodeMounts(Options options);
  ~NodeMounts();

  /// Mounts every folder that is not mounted, and makes missing ones. Blocks until all answer, at most 45 s.
  /// Errors: kInvalidArgument, kNotFound and kPermissionDenied of the mount; else kUnavailable: another try may help.
  Status Mount();
  /// Asks all mounts to publish what was written, and to end. Does not block.
  void Unmount();
  /// Returns nothing while a mount still ends; then whether the stores have everything that was written.
  std::optional<Status> Unmounted();

 private:
  struct Mounted {
    Subprocess process;
    std::optional<ExitState> exit;
  };

  std::filesystem::path LogOf(std::size_t index) const;
  Status MakeFolder(const std::filesystem::path& folder);
  Status MountOne(std::size_t index);
  Status Complaint(std::size_t index, const ExitState& exit, std::string_view what) const;

  const Options options_;
  std::vector<std::optional<Mounted>> mounted_;  ///< one for each of options_.mounts
  std::vector<std::filesystem::path> made_;      ///< folders that were missing; deeper ones come later
};

}  // namespace millrace::jobs
