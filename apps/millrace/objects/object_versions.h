// Versions of objects, for the commands that list, delete or restore them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/millrace/objects/object_commands.h"

namespace millrace::cli {

/// Calls `visit` for each version and delete marker of the items that the selection selects, those of one key from the
/// latest to the oldest. Errors: kInvalidArgument for local files, kUnsupported for other stores that keep no versions,
/// and those of `visit`.
Status ForEachVersion(const Selection& selection, const object::Call& call,
                      const std::function<Status(object::VersionInfo)>& visit);

/// Deletes versions and delete markers of one place for good, a thousand in one request. Not thread-safe.
class VersionDeletions {
 public:
  /// `run` and `place` must live until TransferRun::Finish() has returned.
  VersionDeletions(TransferRun& run, const ObjectPlace& place) : run_(run), place_(place) {}
  void Add(object::VersionName version);
  void Flush();

 private:
  static constexpr std::size_t kMostInRequest = 1000;  // a limit of S3

  TransferRun& run_;
  const ObjectPlace& place_;
  std::vector<object::VersionName> versions_;
};

void AddUndeleteCommand(CLI::App& app, Context& context);

}  // namespace millrace::cli
