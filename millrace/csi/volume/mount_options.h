// The words of `mountOptions`: those of Mountpoint for Amazon S3, so that volumes written for its CSI driver work, and
// the flags of `millrace mount` that a volume may set.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::csi {

/// The parsed mount options of a volume.
struct MountOptions {
  std::vector<std::string> flags;                  ///< of `millrace mount`, as "--name" or "--name=value"
  std::map<std::string, std::string> environment;  ///< of its process
  std::string prefix;                              ///< shows only the keys below it; may begin with a slash
  bool joins_as_written = false;                   ///< the prefix follows that of the volume without a slash
  bool read_only = false;
  bool disk_cache = false;
  bool sets_group = false, sets_modes = false;  ///< whether `flags` has --gid, or one of the modes
};

/// Parses options such as "allow-delete", "region us-west-2", "region=us-west-2" and "--region=us-west-2".
/// Errors: kInvalidArgument for an unknown word (the message suggests a similar one), a word that needs a value and has
/// none, and a word that a volume may not set; the message says why.
Result<MountOptions> ParseMountOptions(std::span<const std::string> options);

/// Returns whether who writes pods may choose this flag for an inline volume.
bool IsInlineFlag(std::string_view flag);

/// The name of a region becomes part of a host's name. Errors: kInvalidArgument.
Status CheckRegion(std::string_view region);

/// Returns whether a mount of a volume may be started with this flag. The mounter asks, since it does not trust the
/// Node service.
bool IsVolumeFlag(std::string_view flag);

}  // namespace millrace::csi
