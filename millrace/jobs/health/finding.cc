#include "millrace/jobs/health/finding.h"

#include <algorithm>

namespace millrace::jobs {

std::string_view LevelName(Finding::Level level) {
  switch (level) {
    case Finding::Level::kOk:
      return "ok";
    case Finding::Level::kWarn:
      return "warn";
    default:
      return "fail";
  }
}

Json ToJson(const Finding& finding) {
  Json json = {{"check", finding.check},
               {"level", LevelName(finding.level)},
               {"what", finding.what},
               {"advice", finding.advice}};
  if (!finding.limit.empty()) json["limit"] = finding.limit;
  if (finding.speed > 0) json["speed"] = finding.speed;
  return json;
}

Result<Finding> FindingFromJson(const Json& json) {
  Finding finding;
  const std::string level = MR_TRY(JsonString(json, "level"));
  if (level != "ok" && level != "warn" && level != "fail") {
    return Fail(Code::kInvalidArgument, "the level \"{}\" of a finding is unknown; expected ok, warn or fail", level);
  }
  finding.level = level == "ok" ? Finding::Level::kOk : level == "warn" ? Finding::Level::kWarn : Finding::Level::kFail;
  finding.check = MR_TRY(JsonString(json, "check"));
  finding.what = MR_TRY(JsonString(json, "what"));
  finding.advice = MR_TRY(JsonString(json, "advice"));
  if (JsonFind(json, "limit") != nullptr) finding.limit = MR_TRY(JsonString(json, "limit"));
  if (JsonFind(json, "speed") != nullptr) finding.speed = MR_TRY(JsonNumber(json, "speed"));
  return finding;
}

const Finding* FirstFailure(const Findings& findings) {
  const auto found = std::ranges::find(findings, Finding::Level::kFail, &Finding::level);
  return found == findings.end() ? nullptr : &*found;
}

}  // namespace millrace::jobs
