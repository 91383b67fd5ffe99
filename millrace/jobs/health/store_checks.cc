#include "millrace/jobs/health/store_checks.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "millrace/base/environment.h"
#include "millrace/base/text.h"
#include "millrace/http/client/client.h"

namespace millrace::jobs {
namespace {

using Level = Finding::Level;

constexpr int kRequests = 3;  // the first one connects
constexpr Duration kPatience = std::chrono::seconds(5), kSlowAnswer = std::chrono::seconds(1);
/// Amazon refuses requests that are dated further from its own clock.
constexpr Duration kSkewRefused = std::chrono::minutes(15), kSkewSuspicious = std::chrono::minutes(1);

}  // namespace

Finding CheckClock(WallTime now, std::string_view date) {
  const auto told = ParseHttpDate(date);
  if (!told) return {Level::kWarn, "clock", "the store does not tell its time", "", "1 min from the store's"};
  const Duration skew = now - *told;
  const Duration size = skew < Duration::zero() ? -skew : skew;
  // The header has whole seconds, so differences below two seconds are not significant.
  const std::string what =
      size < std::chrono::seconds(2)
          ? "agrees with the store's"
          : fmt::format("is {} {} the store's", FormatDuration(size), skew > Duration::zero() ? "ahead of" : "behind");
  if (size < kSkewSuspicious) return {Level::kOk, "clock", what, "", "1 min from the store's"};
  return {size < kSkewRefused ? Level::kWarn : Level::kFail, "clock",
          what + ": signed requests are refused from 15 minutes on", "synchronise it (chronyc, timedatectl)",
          "1 min from the store's"};
}

StoreFindings CheckStoreEndpoint(const StoreEndpoint& endpoint, Clock& clock, std::stop_token stop) {
  if (endpoint.url.empty()) {
    return {{Level::kOk, "network", "not checked: no store was named", ""},
            {Level::kOk, "clock", "not checked: no store was named that tells its time", ""}};
  }
  http::Client client({.timeouts = {.connect = kPatience, .first_byte = kPatience},
                       .ca_bundle = endpoint.ca_bundle,
                       .proxies = http::Proxies::FromEnvironment(EnvironmentVariable)});
  std::optional<Duration> fastest;
  std::string date;
  for (int i = 0; i < kRequests; ++i) {
    const TimePoint begun = SystemClock().Now();
    const auto answer = client.Send({.method = "HEAD", .url = endpoint.url}, {.max_collected = kMiB},
                                    {.stop = stop, .deadline = Deadline::After(SystemClock(), kPatience)});
    if (!answer) {
      return {{Level::kFail, "network", fmt::format("{} does not answer: {}", endpoint.url, answer.error().ToString()),
               "check this machine's network, name service, HTTPS_PROXY and --endpoint-url", "an answer within 5 s"},
              {Level::kWarn, "clock", "not checked: the store does not answer", ""}};
    }
    const Duration took = SystemClock().Now() - begun;
    fastest = std::min(fastest.value_or(took), took);
    date = answer->headers.Get("Date");
  }
  const bool slow = *fastest >= kSlowAnswer;
  return {{slow ? Level::kWarn : Level::kOk, "network",
           fmt::format("{} answers in {}", endpoint.url, FormatDuration(*fastest)),
           slow ? "use a store in the same region, or look at the network" : "", "1 s"},
          CheckClock(clock.Wall(), date)};
}

}  // namespace millrace::jobs
