#include "millrace/object/s3/requests/pace.h"

#include <algorithm>

namespace millrace::object::s3 {

void AdaptiveLimit::Succeeded() { limit_ = std::min(most_, limit_ + 1 / limit_); }

void AdaptiveLimit::Throttled(TimePoint now) {
  constexpr double kKept = 0.7;                         // as CUBIC (RFC 9438)
  constexpr Duration kBurst = std::chrono::seconds(1);  // the requests under way end within about that
  if (now < next_cut_) return;
  next_cut_ = now + kBurst;
  limit_ = std::max(least_, limit_ * kKept);
}

namespace {
constexpr int kFirstUploads = 16;       // enough for a server nearby; for a distant one the limit grows
constexpr int kLeastUploads = 4;        // fewer would leave a server idle between parts
constexpr double kStep = 1.5;           // a guess: fewer steps than 1.1 needs, less overshoot than 2
constexpr double kWorthMore = 1.1;      // a step up stays if it raises the rate to this multiple
constexpr double kWorthLess = 0.98;     // a step down stays if it leaves this part of the rate
constexpr int kRoundsBetweenSteps = 8;  // BBR probes once in eight round trips
}  // namespace

UploadPace::UploadPace(int most) : most_(most), limit_(std::min(kFirstUploads, most)), good_limit_(limit_) {}

void UploadPace::StartRound(TimePoint now) {
  ended_ = 0;
  bytes_ = 0;
  counted_from_ = now;
}

void UploadPace::Ended(std::uint64_t bytes, TimePoint now) {
  const bool held_back = outstanding_-- >= limit_;
  if (!held_back) return StartRound(now);
  if (++ended_ <= limit_) {
    counted_from_ = now;
    return;
  }
  bytes_ += bytes;
  if (ended_ < 3 * limit_ || now <= counted_from_) return;
  AdjustLimit(static_cast<double>(bytes_) / std::chrono::duration<double>(now - counted_from_).count());
  StartRound(now);
}

void UploadPace::AdjustLimit(double rate) {
  const bool kept = mode_ == Mode::kSteady || rate >= good_rate_ * (mode_ == Mode::kRising ? kWorthMore : kWorthLess);
  if (kept) {
    good_limit_ = limit_;
    good_rate_ = rate;
  }
  limit_ = good_limit_;
  if (mode_ == Mode::kRising && kept) {
    rounds_to_step_ = 0;
    up_next_ = true;
  } else if (mode_ != Mode::kSteady) {
    rounds_to_step_ = kRoundsBetweenSteps;
  } else {
    --rounds_to_step_;
  }
  mode_ = Mode::kSteady;
  if (rounds_to_step_ > 0) return;
  mode_ = up_next_ ? Mode::kRising : Mode::kTryingLess;
  const double step = up_next_ ? kStep : 1 / kStep;
  limit_ = std::clamp(static_cast<int>(limit_ * step), std::min(kLeastUploads, most_), most_);
  up_next_ = !up_next_;
}

}  // namespace millrace::object::s3
