#include "millrace/csi/volume/mount_options.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "millrace/base/text.h"
#include "millrace/mount/point/mountpoint_options.h"

namespace millrace::csi {
namespace {

using mount::OptionUse;

/// What an option does besides setting a flag.
enum class Effect : std::uint8_t {
  kFlag,         ///< sets a flag of the mount, or nothing
  kRegion,       ///< a value without signs that are special in names of hosts
  kEnvironment,  ///< a variable of the mount's process
  kPrefix,       ///< the keys that are shown
  kPrefixJoin,   ///< how the prefix follows that of the volume
  kReadOnly,     ///< no changes
  kDiskCache,    ///< a cache on the node's disk; the driver chooses the folder
};

struct VolumeOption {
  std::string_view name;
  OptionUse use;
  std::string_view target;  ///< the flag, the variable, or the reason of a refusal
  Effect effect = Effect::kFlag;
};

constexpr std::string_view kDriverChooses = "the driver chooses it";

/// Options that mean something else in a volume than in `millrace mount`, or that only volumes have.
constexpr auto kVolumeOptions = std::to_array<VolumeOption>({
    // Mountpoint's.
    {"allow-other", OptionUse::kAccepted, ""},
    {"allow-root", OptionUse::kAccepted, ""},
    {"aws-max-attempts", OptionUse::kValue, "AWS_MAX_ATTEMPTS", Effect::kEnvironment},
    {"ca-bundle", OptionUse::kRefused, "mount the file into the mounter's pod and name it in AWS_CA_BUNDLE"},
    {"cache", OptionUse::kValue, "", Effect::kDiskCache},
    {"foreground", OptionUse::kRefused, kDriverChooses},
    {"log-directory", OptionUse::kRefused, kDriverChooses},
    {"no-log", OptionUse::kAccepted, ""},
    {"prefix", OptionUse::kValue, "", Effect::kPrefix},
    {"prefix-join", OptionUse::kValue, "", Effect::kPrefixJoin},
    {"profile", OptionUse::kRefused, "give the volume a secret instead"},
    {"read-only", OptionUse::kFlag, "", Effect::kReadOnly},
    {"region", OptionUse::kValue, "--region", Effect::kRegion},
    // Options of mount(8) that users of Kubernetes write.
    {"ro", OptionUse::kFlag, "", Effect::kReadOnly},
    {"rw", OptionUse::kAccepted, ""},
    {"noatime", OptionUse::kAccepted, ""},
    {"nodev", OptionUse::kAccepted, ""},
    {"nosuid", OptionUse::kAccepted, ""},
    // Ours.
    {"bandwidth", OptionUse::kValue, "--bandwidth"},
    {"close", OptionUse::kValue, "--close"},
    {"concurrency", OptionUse::kValue, "--concurrency"},
    {"kernel-read-ahead", OptionUse::kValue, "--kernel-read-ahead"},
    {"memory-budget", OptionUse::kValue, "--memory-budget"},
    {"parallel-listing", OptionUse::kValue, "--parallel-listing"},
    {"path-style", OptionUse::kFlag, "--path-style"},
    {"publish-delay", OptionUse::kValue, "--publish-delay"},
    {"stored-attributes", OptionUse::kValue, "--stored-attributes"},
    {"strict", OptionUse::kFlag, "--strict"},
    {"virtual-host", OptionUse::kFlag, "--virtual-host"},
});

/// All options of volumes: those above, then Mountpoint's others.
const std::vector<VolumeOption>& Words() {
  static const std::vector<VolumeOption> words = [] {
    std::vector<VolumeOption> all(kVolumeOptions.begin(), kVolumeOptions.end());
    for (const mount::MountpointOption& word : mount::MountpointOptions()) {
      if (std::ranges::find(kVolumeOptions, word.name, &VolumeOption::name) != kVolumeOptions.end()) continue;
      all.push_back({word.name, word.use, word.target});
    }
    return all;
  }();
  return words;
}

/// Flags that the driver adds by itself.
constexpr std::array<std::string_view, 4> kOwnFlags = {"--prefix", "--quota", "--quota-object", "--read-only"};

/// What decides over the content of the mount, and not over the node's memory, disk or network.
constexpr auto kInlineFlags = std::to_array<std::string_view>(
    {"--allow-delete", "--allow-overwrite", "--dir-mode", "--file-mode", "--gid", "--metadata-ttl", "--negative-ttl",
     "--no-sign-request", "--path-style", "--region", "--request-payer", "--strict", "--uid", "--virtual-host"});

Status Apply(const VolumeOption& word, std::string_view value, MountOptions& into) {
  switch (word.effect) {
    case Effect::kEnvironment:
      into.environment[std::string(word.target)] = value;
      return {};
    case Effect::kPrefix:
      into.prefix = value;
      return {};
    case Effect::kPrefixJoin:
      if (value != "as-written") {
        return Fail(Code::kInvalidArgument, "the mount option prefix-join is \"{}\"; it must be as-written", value);
      }
      into.joins_as_written = true;
      return {};
    case Effect::kReadOnly:
      into.read_only = true;
      return {};
    case Effect::kDiskCache:
      into.disk_cache = true;
      return {};
    case Effect::kRegion:
      MR_TRY(CheckRegion(value));
      break;
    case Effect::kFlag:
      break;
  }
  if (word.use == OptionUse::kRefused) {
    return Fail(Code::kInvalidArgument, "the mount option {} is not for volumes: {}", word.name, word.target);
  }
  if (word.use == OptionUse::kAccepted || word.use == OptionUse::kAcceptedValue) return {};
  if (!mount::TakesValue(word.use)) {
    into.flags.emplace_back(word.target);
    return {};
  }
  into.sets_group = into.sets_group || word.target == "--gid";
  into.sets_modes = into.sets_modes || word.target.ends_with("-mode");
  const std::string flag_value =
      MR_TRY(mount::FlagValue(word.use, fmt::format("the mount option {}", word.name), value));
  into.flags.push_back(fmt::format("{}={}", word.target, flag_value));
  return {};
}

}  // namespace

Result<MountOptions> ParseMountOptions(std::span<const std::string> options) {
  MountOptions words;
  for (const std::string& option : options) {
    std::string_view text = Trim(option);
    while (text.starts_with('-')) text.remove_prefix(1);
    if (text.empty()) continue;
    const std::size_t end = text.find_first_of(" =\t");
    const std::string_view name = text.substr(0, end);
    const std::string_view value = end == std::string_view::npos ? "" : Trim(text.substr(end + 1));
    const auto word = std::ranges::find(Words(), name, &VolumeOption::name);
    if (word == Words().end()) {
      std::vector<std::string_view> names;
      for (const VolumeOption& known : Words()) names.push_back(known.name);
      return Fail(Code::kInvalidArgument, "{}", UnknownName("mount option", name, names));
    }
    if (value.empty() && mount::TakesValue(word->use)) {
      return Fail(Code::kInvalidArgument, "the mount option {} needs a value, as in \"{} VALUE\"", name, name);
    }
    if (!value.empty() && !mount::TakesValue(word->use) && word->use != OptionUse::kRefused) {
      return Fail(Code::kInvalidArgument, "the mount option {} takes no value; \"{}\" is one", name, value);
    }
    MR_TRY(Apply(*word, value, words));
  }
  return words;
}

Status CheckRegion(std::string_view region) {
  const bool plain = std::ranges::all_of(
      region, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_'; });
  if (plain) return {};
  return Fail(Code::kInvalidArgument, "the region \"{}\" has other characters than small letters, digits, - and _",
              region);
}

bool IsInlineFlag(std::string_view flag) {
  return std::ranges::find(kInlineFlags, flag.substr(0, flag.find('='))) != kInlineFlags.end();
}

bool IsVolumeFlag(std::string_view flag) {
  const std::string_view name = flag.substr(0, flag.find('='));
  if (std::ranges::find(kOwnFlags, name) != kOwnFlags.end()) return true;
  return std::ranges::any_of(Words(), [&](const VolumeOption& word) {
    if (word.use == OptionUse::kFlag) return !word.target.empty() && word.target == flag;
    return mount::TakesValue(word.use) && word.target.starts_with("--") && word.target == name && name != flag;
  });
}

}  // namespace millrace::csi
