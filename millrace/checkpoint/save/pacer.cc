#include "millrace/checkpoint/save/pacer.h"

#include <algorithm>
#include <chrono>

namespace millrace::checkpoint {

void Pacer::Pass(std::uint64_t bytes) {
  if (rate_ == 0) return;
  clock_.SleepUntil(free_at_);
  const double seconds = static_cast<double>(bytes) / static_cast<double>(rate_);
  free_at_ =
      std::max(free_at_, clock_.Now()) + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace millrace::checkpoint
