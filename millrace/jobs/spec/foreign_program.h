// A program of the user's own that runs as the ranks of a job, in place of millrace-train.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::jobs {

/// A store that programs see as a folder while they run.
struct FolderMount {
  std::string url;
  std::string path;  ///< absolute; made if it is missing
  bool read_only = false;
  bool operator==(const FolderMount&) const = default;
};

/// Reads an entry of run.mounts, whose value is "/path" or "/path:ro".
FolderMount MountOf(std::string_view url, std::string_view value);
/// Returns whether a URL is mounted: it names a store rather than a folder of the machine.
bool IsMounted(std::string_view url);

/// Returns what is mounted in the pods of a job with `run.command`: `run.mounts`, then `checkpoint.url`. The CSI driver
/// mounts it, because a container cannot. Empty for other jobs.
std::vector<FolderMount> PodMounts(const Spec& spec);

/// The program that the ranks of one machine run. Plain data; an agent on another machine gets it as JSON.
struct ForeignProgram {
  std::vector<std::string> command;
  std::string directory;  ///< where it runs; empty: where the launcher does
  std::string source;     ///< the URL of an archive of run.source, in whose files it runs; empty: none
  std::vector<FolderMount> mounts;
  /// A folder that every rank finds in MILLRACE_CHECKPOINTS. Empty: none, or a mount of `checkpoint_url`.
  std::string checkpoint_folder;
  /// If not empty, mounted on checkpoint_folder; if that is empty, on a new folder.
  std::string checkpoint_url;

  Json ToJson() const;
  /// Errors: kInvalidArgument.
  static Result<ForeignProgram> FromJson(const Json& json);
  bool operator==(const ForeignProgram&) const = default;
};

/// Returns whether the program is Millrace's own (millrace, millrace-train): its processes may become ranks, as those
/// of `millrace doctor --links` do. Programs of others meet in their own ways.
bool StartsRanks(const ForeignProgram& program);

/// Returns nothing if the ranks of the job run millrace-train. PodMounts() are folders that are there already.
/// REQUIRES: a Spec that Parse() returned.
std::optional<ForeignProgram> ForeignProgramOf(const Spec& spec);

}  // namespace millrace::jobs
