#include "millrace/vfs/read/order_guess.h"

#include <algorithm>

namespace millrace::vfs {
namespace {

/// A longer stride is a jump. A guess: far more readers than share one directory.
constexpr std::uint64_t kMaxStep = 4096;
/// Equal strides in a row that make a step. A guess: two may be chance.
constexpr int kSameStrides = 3;

}  // namespace

OrderGuess::Plan OrderGuess::OnOpen(std::uint64_t position, bool guessed, TimePoint now) {
  if (started_) {
    const std::uint64_t stride = position > last_ && position - last_ <= kMaxStep ? position - last_ : 0;
    strides_ = stride == stride_ ? strides_ + 1 : 1;
    stride_ = stride;
    if (stride_ > 0 && strides_ >= kSameStrides) step_ = stride_;
    const bool follows = stride > 0 && stride == step_;
    credit_ = std::min(credit_ + (guessed ? 2 : follows ? 1 : 0), 2 * options_.most_ahead);
    const Duration gap = std::min<Duration>(now - opened_, kHorizon);
    interval_ = interval_ == Duration::zero() ? gap : (interval_ * 7 + gap) / 8;
  }
  started_ = true;
  last_ = position;
  opened_ = now;
  int count = std::min(credit_, options_.most_ahead);
  if (interval_ > Duration::zero()) {
    count = static_cast<int>(std::min<std::int64_t>(count, std::max<std::int64_t>(1, kHorizon / interval_)));
  }
  return {.first = position + step_, .step = step_, .count = credit_ > 0 ? count : 0};
}

}  // namespace millrace::vfs
