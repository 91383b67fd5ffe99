#include "millrace/http/client/hedge.h"

#include <algorithm>
#include <cmath>

namespace millrace::http {

std::optional<Duration> HedgePolicy::Began() {
  constexpr double kMaxTokens = 4;     // a burst of second tries must not become a load of its own
  constexpr int kLeastSamples = 20;    // enough for the deviation to settle
  constexpr double kLeastWait = 0.05;  // seconds; a shorter wait would hedge mere jitter
  constexpr double kDeviations = 6;    // far outside of what is usual: RFC 6298 times out after 4
  tokens_ = std::min(kMaxTokens, tokens_ + share_);
  if (share_ <= 0 || samples_ < kLeastSamples) return std::nullopt;
  std::chrono::duration<double> wait(std::max(kLeastWait, mean_ + kDeviations * deviation_));
  return std::chrono::duration_cast<Duration>(wait);
}

void HedgePolicy::Answered(Duration after) {
  double seconds = std::chrono::duration<double>(after).count();
  if (samples_++ == 0) {
    mean_ = seconds;
    deviation_ = seconds / 2;
    return;
  }
  deviation_ += (std::abs(seconds - mean_) - deviation_) / 4;
  mean_ += (seconds - mean_) / 8;
}

bool HedgePolicy::Spend() {
  if (tokens_ < 1) return false;
  tokens_ -= 1;
  return true;
}

}  // namespace millrace::http
