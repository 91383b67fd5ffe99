#include "apps/millrace/cli/view_flags.h"

#include <memory>

#include "millrace/base/result.h"
#include "millrace/base/text.h"
#include "millrace/object/open/version_view.h"

namespace millrace::cli {
namespace {

Result<WallTime> ParseMoment(std::string_view text) {
  if (auto age = ParseDuration(text)) {
    return SystemClock().Wall() - std::chrono::duration_cast<WallTime::duration>(*age);
  }
  constexpr std::size_t kDate = 10, kMinutes = 16;  // 2026-11-20, 2026-11-20T12:00
  std::string whole(text.ends_with('Z') ? text.substr(0, text.size() - 1) : text);
  if (whole.size() > kDate && whole[kDate] == ' ') whole[kDate] = 'T';
  if (whole.size() == kDate) whole += "T00:00";
  if (whole.size() == kMinutes) whole += ":00";
  if (auto time = ParseIso8601(whole)) return time;
  return Fail(Code::kInvalidArgument,
              "{} is no time; write one in UTC, such as 2026-11-20T12:00 or 2026-11-20, or how long ago, such as 2h",
              text);
}

}  // namespace

void AddMomentFlag(CLI::App& command, std::optional<WallTime>& at, const std::string& description) {
  command
      .add_option_function<std::string>(
          "--at",
          [&at](const std::string& text) {
            auto time = ParseMoment(text);
            if (!time) throw CLI::ValidationError("--at: " + std::string(time.error().message()));
            at = *time;
          },
          description)
      ->type_name("TIME");
}

void ViewFlags::AddTo(CLI::App& command, bool with_version) {
  AddMomentFlag(command, at, "Objects as they were at this time (UTC, 2026-11-20T12:00) or so long ago (2h)");
  if (with_version) command.add_option("--version-id", version, "This version of the object, by its ID");
}

Status ViewFlags::Apply(const object::Url& url, object::Location& place) const {
  if (!any()) return {};
  if (url.scheme != object::Url::Scheme::kS3) {
    return Fail(Code::kInvalidArgument, "{} keeps no versions; --at and --version-id are for s3://", url.ToString());
  }
  if (at) {
    place.store = object::ViewAsOf(std::move(place.store), *at);
    return {};
  }
  if (place.key.empty() || place.key.ends_with('/')) {
    return Fail(Code::kInvalidArgument,
                "{} names no object, and --version-id is of one; `millrace ls --versions` shows "
                "the IDs",
                url.ToString());
  }
  place.store = object::ViewVersion(std::move(place.store), {.key = place.key, .id = version});
  return {};
}

}  // namespace millrace::cli
