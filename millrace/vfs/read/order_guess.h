// Predicts which files of an ordered set will be opened next, such as the files of a directory by name.
#pragma once

#include <cstdint>

#include "millrace/base/clock.h"

namespace millrace::vfs {

/// Watches which positions of an order are opened, and plans which positions to read ahead. A pure state machine: one
/// owner, no locking.
///
/// The plan is as long as the credit allows. Reading a position ahead costs one credit. If the position is then opened,
/// it earns two. An open that follows the order without having been read ahead earns one. So a reader that keeps to the
/// order is soon served far ahead. A reader that does not keep to it costs a few requests only.
///
/// A reader may open every position, or every n-th one, if n readers share the set. Several readers may follow the
/// order from different positions: a plan begins at the position opened last.
class OrderGuess {
 public:
  struct Options {
    int initial_credit = 8;
    int most_ahead = 64;  ///< positions
  };
  /// Only the positions that are likely to be opened within this time are read ahead.
  static constexpr Duration kHorizon = std::chrono::milliseconds(500);
  /// The positions that are likely to be opened next: first, first + step, first + 2 · step, … The nearest is the
  /// first.
  struct Plan {
    std::uint64_t first = 0, step = 1;
    int count = 0;
  };

  explicit OrderGuess(Options options) : options_(options), credit_(options.initial_credit) {}

  /// Call when a position is opened. `guessed`: the position was read ahead. Returns the positions to read ahead now.
  Plan OnOpen(std::uint64_t position, bool guessed, TimePoint now);
  /// Call for each position of a plan that is now read ahead for the first time. Takes one credit.
  void OnGuess() { --credit_; }
  int credit() const { return credit_; }

 private:
  const Options options_;
  int credit_;
  bool started_ = false;
  /// The position opened last; the distance between two positions of the order; that between the last two opens.
  std::uint64_t last_ = 0, step_ = 1, stride_ = 1;
  int strides_ = 0;  ///< the number of equal strides in a row
  TimePoint opened_;
  Duration interval_{};  ///< between opens, smoothed
};

}  // namespace millrace::vfs
