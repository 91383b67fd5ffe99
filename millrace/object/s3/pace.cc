#include "millrace/object/s3/pace.h"

#include <algorithm>

namespace millrace::object::s3 {

void AdaptiveLimit::Succeeded() { limit_ = std::min(most_, limit_ + 1 / limit_); }

void AdaptiveLimit::Throttled(TimePoint now) {
  constexpr double kKept = 0.7;
  constexpr Duration kBurst = std::chrono::seconds(1);
  if (now < next_cut_) return;
  next_cut_ = now + kBurst;
  limit_ = std::max(least_, limit_ * kKept);
}

}  // namespace millrace::object::s3
