// Checks whether a store answers a machine, and whether their clocks agree.
#pragma once

#include <stop_token>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/jobs/health/finding.h"

namespace millrace::jobs {

struct StoreEndpoint {
  std::string url;        ///< empty: there is none
  std::string ca_bundle;  ///< a path; empty: the system's certificates
};

struct StoreFindings {
  Finding network, clock;
};

/// Sends some unsigned requests. Any answer counts, also a refusal. Blocks for at most 15 s.
StoreFindings CheckStoreEndpoint(const StoreEndpoint& endpoint, Clock& clock, std::stop_token stop);

/// Judges this machine's clock by the "Date" of an answer that has just come. "": the store's answer has no time.
Finding CheckClock(WallTime now, std::string_view date);

}  // namespace millrace::jobs
