// A finding of a check: the common form of reports for people, scripts and the supervisor.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::jobs {

/// One line of a report.
struct Finding {
  enum class Level { kOk, kWarn, kFail };
  Level level = Level::kOk;
  std::string check;   ///< "fuse", "credentials", …
  std::string what;    ///< what was found and what it means
  std::string advice;  ///< what to do; empty when nothing
  std::string limit;   ///< what was the limit; empty: there is none
  double speed = 0;    ///< to compare with other machines, in any unit; 0: nothing to compare
  bool operator==(const Finding&) const = default;
};
using Findings = std::vector<Finding>;

std::string_view LevelName(Finding::Level level);  ///< "ok", "warn" or "fail"
/// {"check", "level", "what", "advice"}, and "limit" and "speed" if there are.
Json ToJson(const Finding& finding);
/// Errors: kInvalidArgument.
Result<Finding> FindingFromJson(const Json& json);
/// Returns the first finding that fails; nullptr if none does.
const Finding* FirstFailure(const Findings& findings);

}  // namespace millrace::jobs
