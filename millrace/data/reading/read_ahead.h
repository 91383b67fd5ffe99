// How many chunks to fetch at a time.
#pragma once

#include <algorithm>
#include <utility>

namespace millrace::data {

/// Few fetches at a time leave the network to others and memory to what is needed first, too few let the consumer wait.
/// One that was late doubles the depth; while all are in time it shrinks, a step at a time. A step that made one late
/// is taken back, and the next is tried after twice as many: so the depth comes to rest, at what is just enough, and
/// follows when the consumer or the store changes. Pure arithmetic; its owner locks.
class ReadAheadDepth {
 public:
  static constexpr int kLeast = 4, kPatience = 64, kLongestPatience = 4096;

  /// `most` may be less than kLeast.
  explicit ReadAheadDepth(int most) : most_(std::max(most, 1)), now_(std::min(kLeast, most_)) {}

  int now() const { return now_; }

  /// A chunk was needed, and there or not. True if the depth grew.
  bool Needed(bool in_time) {
    const int before = now_;
    ++since_step_;
    if (!in_time) {
      in_time_ = 0;
      // Those right behind a step down are its doing, and one back is enough.
      const bool by_step = since_step_ < kPatience;
      now_ = std::min(by_step ? now_ + 1 : 2 * now_, most_);
      if (std::exchange(shrunk_, false)) patience_ = std::min(2 * patience_, kLongestPatience);
    } else if (++in_time_ >= patience_) {
      in_time_ = 0;
      if (now_ > std::min(kLeast, most_)) {
        --now_;
        shrunk_ = true;
        since_step_ = 0;
      }
    }
    return now_ > before;
  }

 private:
  int most_, now_;
  int in_time_ = 0;  ///< in a row
  int patience_ = kPatience;
  int since_step_ = kPatience;  ///< chunks since the last step down
  bool shrunk_ = false;         ///< the last change was one
};

}  // namespace millrace::data
