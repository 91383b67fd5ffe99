// The folder of a run in a bucket: status, events and logs (docs/formats/run-folder.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/jobs/state.h"
#include "millrace/object/location.h"

namespace millrace::jobs {

/// Returns the event in a line of rank 0's standard output: a checkpoint or an evaluation.
std::optional<Json> EventOfLine(std::string_view line);

/// Writes the folder of a run. One owner, one thread; see RunPublisher for a thread of its own.
class RunFolderWriter {
 public:
  struct Options {
    std::filesystem::path logs;  ///< the files to copy: all regular files in it but those named *.jsonl
    /// Files that are put as a whole, under their own names, when they have changed. They may be absent.
    std::vector<std::filesystem::path> pages = {};
    std::string run;                  ///< the name of this run (NewRunName())
    std::uint64_t roll = 256 * kKiB;  ///< the size of an object of a log
    std::uint64_t most_events = 4 * kMiB;
  };
  /// `folder.key` is the prefix of the folder, with its slash, or empty.
  RunFolderWriter(object::Location folder, Options options);

  /// Writes what has changed since the last call that succeeded: new bytes of each log, pages, events and status.
  /// Errors: those of the store. What was not written follows with the next call.
  Status Write(const std::vector<Json>& new_events, const std::optional<Json>& status, const object::Call& call);

 private:
  /// A log file, up to what the bucket has of it.
  struct CopiedLog {
    std::uint64_t begin = 0;  ///< of the object that is being extended
    std::uint64_t copied = 0;
  };
  Status CopyLog(const std::filesystem::path& file, const object::Call& call);
  Status CopyPage(const std::filesystem::path& file, const object::Call& call);
  Status WriteEvents(const object::Call& call);

  const object::Location folder_;
  const Options options_;
  std::map<std::string, CopiedLog> logs_;
  std::map<std::filesystem::path, std::string> pages_;  ///< what the bucket has of them
  bool read_events_ = false;                            ///< those of earlier runs are in events_
  std::string events_;                                  ///< the lines of events.jsonl
  std::string pending_;                                 ///< lines of this run that are not in events_ yet
  bool events_changed_ = false;
};

/// Returns a new name for a run that starts now.
std::string NewRunName(WallTime now, Random& random);

/// Reads the status in a folder. Errors: kNotFound if there is none; kCorrupt.
Result<Json> ReadRunStatus(const object::ReadLocation& folder, const object::Call& call);

/// Returns the status of a job as its run's folder has it. The state is "lost" if the job is active and has not written
/// its status for two minutes. Errors: kCorrupt.
Result<JobStatus> StatusInFolder(const Json& json, WallTime now);

/// Reads one log of a run while it grows. One owner, one thread.
class RunLogReader {
 public:
  /// `name` is the log's: "rank-0.out".
  RunLogReader(object::ReadLocation folder, std::string run, std::string name);
  /// Calls `take` with the bytes that were added since the last call. Returns whether there is such a log.
  Result<bool> Poll(const std::function<void(std::string_view)>& take, const object::Call& call);

 private:
  const object::ReadLocation folder_;
  const std::string prefix_;
  std::uint64_t offset_ = 0, begin_ = 0;  ///< read so far; where the object begins that is being read
};

}  // namespace millrace::jobs
