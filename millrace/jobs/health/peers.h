// Finds machines that are slower than the others of their job.
#pragma once

#include <map>
#include <string>

#include "millrace/jobs/health/finding.h"

namespace millrace::jobs {

/// Compares the speeds that the same check found on several machines with their median, and lowers the level of slow
/// ones: to kWarn below 0.8 of it, to kFail below 0.5. Two machines say who is slower, but not who is right; so at
/// least three are needed.
void CompareWithPeers(std::map<std::string, Findings>& reports);

}  // namespace millrace::jobs
