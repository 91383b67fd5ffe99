// Which files of an ordered set will be opened next.
#pragma once

#include <cstdint>

#include "millrace/base/clock.h"

namespace millrace::vfs {

/// Watches which positions of an order are opened and says which to read ahead. A pure state machine: one owner, no
/// locking.
///
/// Guesses cost credit; a right one earns twice its cost, so that a reader who keeps to the order is soon served far
/// ahead, and one who does not costs the first few guesses and no more. Without credit, opens that follow the order
/// earn some again. The order is that of the set, or every n-th position of it (one of n readers that share it), and
/// may be followed in several positions at once: each open is a position to go on from.
class OrderGuess {
 public:
  struct Options {
    int initial_credit = 8;
    int most_ahead = 64;  ///< positions
    /// Files read ahead are worth less when they wait longer than this until they are opened.
    Duration horizon = std::chrono::milliseconds(500);
  };
  /// The positions first, first + step, … are likely to come next, nearest first.
  struct Plan {
    std::uint64_t first = 0, step = 1;
    int count = 0;
  };

  explicit OrderGuess(Options options) : options_(options), credit_(options.initial_credit) {}

  /// `guessed`: the position was read ahead.
  Plan OnOpen(std::uint64_t position, bool guessed, TimePoint now);
  /// One position of the plan has been read ahead that was not before.
  void OnGuess() { --credit_; }
  int credit() const { return credit_; }

 private:
  const Options options_;
  int credit_;
  bool started_ = false;
  std::uint64_t last_ = 0, step_ = 1, stride_ = 1;  ///< stride_: of the last two opens
  int strides_ = 0;                                 ///< so many in a row were the same
  TimePoint opened_;
  Duration interval_{};  ///< between opens, smoothed
};

}  // namespace millrace::vfs
