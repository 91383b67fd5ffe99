// Translates the options of Mountpoint for Amazon S3 (`mount-s3 --help`, release 1.24) to flags of `millrace mount`.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::mount {

/// The effect of an option of Mountpoint on `millrace mount`.
enum class OptionUse : std::uint8_t {
  kFlag,           ///< sets `target`, a flag without a value
  kValue,          ///< sets `target`, a flag that takes the same value
  kSeconds,        ///< as kValue; the value is a number of seconds, "minimal" or "indefinite"
  kMebibytes,      ///< as kValue; the value is a number of MiB
  kGigabits,       ///< as kValue; the value is a number of gigabits per second
  kThreads,        ///< as kValue; the value is a number of threads
  kAccepted,       ///< has no effect; `target` says what to use instead, or is empty if the mount does so in any case
  kAcceptedValue,  ///< as kAccepted, for an option with a value
  kRefused,        ///< is an error, because it would change what the mount does; `target` says what to use instead
};

/// An option of Mountpoint. Static storage.
struct MountpointOption {
  std::string_view name;  ///< without dashes
  OptionUse use;
  std::string_view target;  ///< a flag of `millrace mount` as "--name", or advice
};

/// Returns all options of Mountpoint, in the order of their names.
std::span<const MountpointOption> MountpointOptions();
/// Returns the option of a name. Null if Mountpoint has no such option.
const MountpointOption* FindMountpointOption(std::string_view name);

/// Returns whether the option is followed by a value.
bool TakesValue(OptionUse use);
/// Returns the value of the flag `target`, from the `value` of the option. A value in the form of `millrace mount`
/// ("10s", "5GiB") does not change. `name` is for the message. Errors: kInvalidArgument if the value is not a number.
Result<std::string> FlagValue(OptionUse use, std::string_view name, std::string_view value);

/// A command line of `millrace mount`, without options of Mountpoint.
struct MountCommandLine {
  std::vector<std::string> arguments;
  std::vector<std::string> notes;  ///< about options that have no effect, for the user
};

/// Replaces each option of Mountpoint in a command line of `millrace mount` by a flag of `millrace mount`. Other words
/// do not change. Errors: kInvalidArgument, with advice, for an option that has no equivalent, and for a malformed
/// number.
Result<MountCommandLine> TranslateMountpointOptions(std::span<const std::string> arguments);

}  // namespace millrace::mount
