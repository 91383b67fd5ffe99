#include "millrace/mount/point/mountpoint_options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "millrace/base/bytes.h"
#include "millrace/base/text.h"

namespace millrace::mount {
namespace {

using enum OptionUse;

constexpr auto kMountpointOptions = std::to_array<MountpointOption>({
    {"allow-delete", kFlag, "--allow-delete"},
    {"allow-other", kFlag, "--allow-other"},
    {"allow-overwrite", kFlag, "--allow-overwrite"},
    {"allow-root", kFlag, "--allow-root"},
    {"auto-unmount", kAccepted, "the next mount on the folder removes what a killed one left"},
    {"bind", kRefused, "choose the network interface with a route of the system"},
    {"bucket-type", kAcceptedValue, ""},
    {"ca-bundle", kValue, "--ca-bundle"},
    {"cache", kValue, "--cache"},
    {"cache-block-size", kAcceptedValue, "blocks have 1 MiB"},
    {"cache-xz", kRefused, "name a folder of a local disk with --cache"},
    {"debug", kFlag, "--log-level=debug"},
    {"debug-crt", kAccepted, "--debug logs requests, too"},
    {"dir-mode", kValue, "--dir-mode"},
    {"dual-stack", kRefused,
     "name the dual-stack endpoint with --endpoint-url https://s3.dualstack.REGION.amazonaws.com"},
    {"endpoint-url", kValue, "--endpoint-url"},
    {"expected-bucket-owner", kValue, "--expected-bucket-owner"},
    {"file-mode", kValue, "--file-mode"},
    {"force-path-style", kFlag, "--path-style"},
    {"foreground", kFlag, "--foreground"},
    {"gid", kValue, "--gid"},
    {"incremental-upload", kAccepted, ""},
    {"log-directory", kValue, "--log-directory"},
    {"log-metrics", kAccepted, "`millrace stats` shows the figures of a mount"},
    {"max-cache-size", kMebibytes, "--max-cache-size"},
    {"max-memory-target", kMebibytes, "--memory-budget"},
    {"max-threads", kThreads, "--threads"},
    {"maximum-throughput-gbps", kGigabits, "--bandwidth"},
    {"memory-target", kMebibytes, "--memory-budget"},
    {"metadata-ttl", kSeconds, "--metadata-ttl"},
    {"negative-metadata-ttl", kSeconds, "--negative-ttl"},
    {"no-log", kFlag, "--log-level=off"},
    {"no-sign-request", kFlag, "--no-sign-request"},
    {"otlp-endpoint", kRefused, "serve the figures to Prometheus with --metrics-listen"},
    {"otlp-export-interval", kRefused, "serve the figures to Prometheus with --metrics-listen"},
    {"part-size", kValue, "--write-part-size"},
    {"prefix", kValue, "--prefix"},
    {"profile", kValue, "--profile"},
    {"read-only", kFlag, "--read-only"},
    {"read-part-size", kValue, "--read-part-size"},
    {"region", kValue, "--region"},
    {"requester-pays", kFlag, "--request-payer"},
    {"sse", kValue, "--sse"},
    {"sse-kms-key-id", kValue, "--sse-kms-key-id"},
    {"storage-class", kValue, "--storage-class"},
    {"transfer-acceleration", kRefused,
     "name the accelerated endpoint with --endpoint-url https://s3-accelerate.amazonaws.com"},
    {"uid", kValue, "--uid"},
    {"upload-checksums", kAcceptedValue, ""},
    {"user-agent-prefix", kAcceptedValue, "requests name millrace as their agent"},
    {"write-part-size", kValue, "--write-part-size"},
});

/// The short forms.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kShort = {
    {{"-d", "debug"}, {"-f", "foreground"}, {"-l", "log-directory"}}};

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

Result<double> ParseWordNumber(std::string_view name, std::string_view value) {
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || !(number >= 0 && number <= 1e9)) {
    return Fail(Code::kInvalidArgument, "{} needs a number, not \"{}\"", name, value);
  }
  return number;
}

}  // namespace

std::span<const MountpointOption> MountpointOptions() { return kMountpointOptions; }

const MountpointOption* FindMountpointOption(std::string_view name) {
  const auto* const found = std::ranges::find(kMountpointOptions, name, &MountpointOption::name);
  return found == kMountpointOptions.end() ? nullptr : found;
}

bool TakesValue(OptionUse use) { return use != kFlag && use != kAccepted && use != kRefused; }

Result<std::string> FlagValue(OptionUse use, std::string_view name, std::string_view value) {
  switch (use) {
    case kSeconds:
      if (value == "indefinite" || value == "forever") return "forever";
      if (value == "minimal" || value == "none") return "none";
      if (ParseDuration(value)) return std::string(value);
      return fmt::format("{}ms", static_cast<std::uint64_t>(MR_TRY(ParseWordNumber(name, value)) * 1000));
    case kMebibytes: {
      const std::uint64_t bytes = MR_TRY(ParseBytes(value));
      // Mountpoint counts MiB. A number from 2^20 is one of bytes, as our own flags have them: nobody has 1 TiB of
      // cache by accident.
      return IsNumber(value) && bytes < kMiB ? fmt::format("{}MiB", value) : std::string(value);
    }
    case kGigabits: {
      const double kilobytes = MR_TRY(ParseWordNumber(name, value)) * 125'000;
      return fmt::format("{}KB", static_cast<std::uint64_t>(std::max(1.0, kilobytes)));
    }
    case kThreads:
      return fmt::format("{}", std::clamp(static_cast<int>(MR_TRY(ParseWordNumber(name, value))), 2, 256));
    default:
      return std::string(value);
  }
}

Result<MountCommandLine> TranslateMountpointOptions(std::span<const std::string> arguments) {
  MountCommandLine line;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--") {
      line.arguments.insert(line.arguments.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
      break;
    }
    const std::size_t equal = argument.find('=');
    const auto* const brief =
        std::ranges::find(kShort, argument, &std::pair<std::string_view, std::string_view>::first);
    std::string_view name;
    if (brief != kShort.end()) {
      name = brief->second;
    } else if (argument.starts_with("--")) {
      name = argument.substr(2, equal == argument.npos ? equal : equal - 2);
    }
    const MountpointOption* const word = FindMountpointOption(name);
    if (word == nullptr) {
      line.arguments.emplace_back(argument);
      continue;
    }
    const bool own_value = equal != argument.npos;
    if (word->use == kRefused)
      return Fail(Code::kInvalidArgument, "--{} is an option of Mountpoint: {}", word->name, word->target);
    const bool has_value = own_value || (TakesValue(word->use) && i + 1 < arguments.size());
    if (has_value != TakesValue(word->use)) {  // the parser of `millrace mount` says what is wrong
      line.arguments.emplace_back(argument);
      continue;
    }
    if (word->use == kAccepted || word->use == kAcceptedValue) {
      if (!own_value && has_value) ++i;
      if (!word->target.empty()) line.notes.push_back(fmt::format("--{} has no effect: {}", word->name, word->target));
    } else if (has_value) {
      const std::string_view value = own_value ? argument.substr(equal + 1) : std::string_view(arguments[++i]);
      const std::string own = MR_TRY(FlagValue(word->use, fmt::format("--{}", word->name), value));
      line.arguments.push_back(fmt::format("{}={}", word->target, own));
    } else {
      line.arguments.emplace_back(word->target);
    }
  }
  return line;
}

}  // namespace millrace::mount
