// Decides how many chunks to fetch at a time.
#pragma once

#include <algorithm>
#include <utility>

namespace millrace::data {

/// Adapts the depth of reading ahead. With a small depth, little memory is used and the network is left to others. With
/// a large one, the consumer waits less. A late chunk doubles the depth. While chunks arrive in time, the depth shrinks
/// by one at a time. A step down that makes a chunk late is undone, and the next step down takes twice as many chunks
/// in time. So the depth settles at the least that suffices, and follows when the consumer or the store changes.
/// Arithmetic only; the owner locks.
class ReadAheadDepth {
 public:
  static constexpr int kLeast = 4;  ///< the depth at the start and the least depth; a guess
  /// Chunks in time before a step down, at first and at most. Guesses: a step down is tried every few windows.
  static constexpr int kPatience = 64, kLongestPatience = 4096;

  /// `most` is the largest depth. It may be less than kLeast.
  explicit ReadAheadDepth(int most) : most_(std::max(most, 1)), now_(std::min(kLeast, most_)) {}

  int now() const { return now_; }

  /// Takes note that a chunk was needed, and whether it was there. Returns true if the depth grew.
  bool Needed(bool in_time) {
    const int before = now_;
    ++since_step_;
    if (!in_time) {
      in_time_ = 0;
      // A step down causes the late chunks right after it. To undo that one step is enough.
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
