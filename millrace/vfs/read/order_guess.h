// Which files of an ordered set will be opened next.
#pragma once

#include <cstdint>

#include "millrace/base/clock.h"

namespace millrace::vfs {

/// Watches which positions of an order are opened, and plans which to read ahead. A pure state machine: one owner, no
/// locking.
///
/// A guess costs one credit; a right guess earns two. So a reader that keeps to the order is soon served far ahead, and
/// a reader that does not costs a few guesses only. An open that follows the order without a guess earns one. The order
/// is that of the set, or every n-th position of it (one of n readers that share the set). Several readers may follow
/// it from different positions: a plan begins at the position opened last.
class OrderGuess {
 public:
  struct Options {
    int initial_credit = 8;
    int most_ahead = 64;  ///< positions
    /// Files are read ahead only as far as they are expected to be opened within this time.
    Duration horizon = std::chrono::milliseconds(500);
  };
  /// The positions first, first + step, … are likely to come next, nearest first.
  struct Plan {
    std::uint64_t first = 0, step = 1;
    int count = 0;
  };

  explicit OrderGuess(Options options) : options_(options), credit_(options.initial_credit) {}

  /// Call when a position is opened. `guessed`: it was read ahead. Returns which positions to read ahead now.
  Plan OnOpen(std::uint64_t position, bool guessed, TimePoint now);
  /// Call when a position of the plan is read ahead that was not before.
  void OnGuess() { --credit_; }
  int credit() const { return credit_; }

 private:
  const Options options_;
  int credit_;
  bool started_ = false;
  std::uint64_t last_ = 0, step_ = 1, stride_ = 1;  ///< stride_: of the last two opens
  int strides_ = 0;                                 ///< how many in a row were equal
  TimePoint opened_;
  Duration interval_{};  ///< between opens, smoothed
};

}  // namespace millrace::vfs
