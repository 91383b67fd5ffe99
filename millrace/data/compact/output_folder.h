// The folder that a compaction writes. Its objects are staged in a hidden folder and appear together at the end.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/object/connection.h"

namespace millrace::data {

/// The name of the report beside the shards.
inline constexpr std::string_view kReportName = "report.json";

/// One output of one compaction. `.millrace/compact-ID/` below the output holds staged objects; data sets leave out
/// names with a dot in front. Staging the report ends the staging. Publishing copies the shards inside the store, and
/// puts the report last. So a folder with a report is whole. One thread, but Stage() may run on several. Blocks.
class OutputFolder {
 public:
  /// Errors: kInvalidArgument if `url` names a bucket or no place.
  static Result<OutputFolder> Open(object::Connection& connection, std::string_view url);

  /// Returns true if an object with this key of `store` would lie in the folder.
  bool Holds(const object::Store& store, std::string_view key) const;
  /// Names the compaction by what its result depends on. Comes before the calls below.
  void SetIdentity(std::string_view identity);

  /// Returns the staged report if an earlier run with the same identity staged everything and was then stopped.
  Result<std::optional<std::string>> FindStagedReport(const object::Call& call);
  /// Returns true if this is the folder's report. Then only the end of Publish() may be missing.
  Result<bool> IsPublished(std::string_view report, const object::Call& call) const;
  /// Errors: kNotEmpty if the folder holds objects, other than `own` and what lies in hidden folders. With `force`,
  /// shards and reports of an earlier run are no error, but other objects are.
  Status CheckFree(std::span<const std::string> own, bool force, const object::Call& call) const;
  /// Deletes everything that earlier runs staged for this folder.
  Status RemoveStaged(const object::Call& call) const;
  Status Stage(std::string_view name, std::string_view bytes, const object::Call& call) const;
  /// Copies the staged objects called `names` into the folder, then puts the report there. Deletes the earlier report
  /// before, and then the shards of earlier runs. Deletes what is staged at the end.
  Status Publish(std::span<const std::string> names, std::string_view report, const object::Call& call) const;

 private:
  explicit OutputFolder(object::Location location) : location_(std::move(location)) {}
  std::string AllStaged() const { return location_.key + ".millrace/compact-"; }
  std::string Staged(std::string_view name) const { return AllStaged() + identity_ + "/" + std::string(name); }
  /// Returns the names of the objects below the folder, relative to it, without those of hidden folders.
  Result<std::vector<std::string>> List(const object::Call& call) const;
  Status Delete(std::vector<std::string> keys, const object::Call& call) const;

  object::Location location_;  ///< the key is empty or ends in '/'
  std::string identity_;
};

}  // namespace millrace::data
