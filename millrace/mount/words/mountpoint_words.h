// The options of Mountpoint for Amazon S3 (`mount-s3 --help`, release 1.24), and what each of them is here.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::mount {

enum class WordUse : std::uint8_t {
  kFlag,           ///< `target` is a flag without a value
  kValue,          ///< `target` is a flag that takes the same value
  kSeconds,        ///< a number of seconds, or "minimal" or "indefinite"
  kMebibytes,      ///< a number of MiB
  kGigabits,       ///< a number of gigabits per second
  kThreads,        ///< a number of threads
  kAccepted,       ///< no effect; `target` says what to use instead, or is empty if it is the case anyway
  kAcceptedValue,  ///< the same for an option with a value
  kRefused,        ///< would change what the mount does; `target` says what to use instead
};

/// An option of Mountpoint. Static storage.
struct MountpointWord {
  std::string_view name;  ///< without dashes
  WordUse use;
  std::string_view target;  ///< a flag of `millrace mount` as "--name", or advice
};

/// All of them, in the order of their names.
std::span<const MountpointWord> MountpointWords();
/// The option of that name; null if Mountpoint has none.
const MountpointWord* FindMountpointWord(std::string_view name);

/// Whether a value follows the option.
bool TakesValue(WordUse use);
/// The value of the flag `target` for this value of the option. Values in the form of `millrace mount` ("10s", "5GiB")
/// stay as they are. Errors: kInvalidArgument for a text that is no number.
Result<std::string> FlagValue(WordUse use, std::string_view name, std::string_view value);

/// A command line of `millrace mount`.
struct MountCommandLine {
  std::vector<std::string> arguments;
  std::vector<std::string> notes;  ///< about options that have no effect, for the user
};

/// Replaces the options of Mountpoint in a command line of `millrace mount` by its own flags. Other words stay.
/// Errors: kInvalidArgument for an option that has no equivalent, with advice, and for a malformed number.
Result<MountCommandLine> TranslateMountpointWords(std::span<const std::string> arguments);

}  // namespace millrace::mount
