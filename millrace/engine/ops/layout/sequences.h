// The division of a batch's tokens into sequences.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace millrace::engine::ops {

/// N tokens as consecutive sequences of any lengths. A token attends only within its sequence, and positions count from
/// the sequence's first token. A sequence may follow earlier tokens of its own that a cache has. Immutable. Copies
/// share their data.
class Sequences {
 public:
  /// Returns `rows` sequences of `length` tokens each. Each follows `past` earlier tokens that a cache has.
  static Sequences Even(std::int64_t rows, std::int64_t length, std::int64_t past = 0);
  /// Returns sequences where sequence i is tokens bounds[i] … bounds[i+1] - 1.
  /// Throws c10::Error unless the bounds rise from 0 to `tokens`.
  static Sequences Cut(std::span<const std::int32_t> bounds, std::int64_t tokens);
  /// Returns sequences of these lengths, where sequence i follows `past[i]` tokens that a cache has.
  /// Throws c10::Error unless there are some, and each has a token.
  static Sequences Following(std::span<const std::int64_t> lengths, std::span<const std::int64_t> past);
  /// The same, where PositionsOn() returns `positions` for their device, a GPU. Others may be written there later: work
  /// that was recorded then runs again with those (device/recorder.h).
  static Sequences Following(std::span<const std::int64_t> lengths, std::span<const std::int64_t> past,
                             at::Tensor positions);
  /// Returns sequences [first, last) as a batch of their own.
  Sequences Slice(std::int64_t first, std::int64_t last) const;

  std::int64_t count() const { return static_cast<std::int64_t>(data_->bounds.size()) - 1; }
  std::int64_t tokens() const { return data_->bounds.back(); }
  std::int64_t begin(std::int64_t i) const { return data_->bounds[static_cast<std::size_t>(i)]; }
  std::int64_t length(std::int64_t i) const { return begin(i + 1) - begin(i); }
  std::int64_t past(std::int64_t i) const { return data_->past[static_cast<std::size_t>(i)]; }
  std::int64_t longest() const { return length(longest_first().front()); }
  bool even() const { return length(longest_first().back()) == longest(); }
  /// Returns the numbers of all sequences, the longest first. Threads that take the next one when they are free then
  /// end at about the same time.
  const std::vector<std::int64_t>& longest_first() const { return data_->longest_first; }
  const at::Tensor& positions() const { return data_->positions; }  ///< int32 [N], on the CPU, each below `limit()`
  std::int64_t limit() const { return data_->limit; }
  /// Return the positions, and the first token of each sequence with the number of tokens behind the last (int32
  /// [count() + 1]), on `device`. The first call for a GPU copies them there, without waiting. Thread-safe.
  at::Tensor PositionsOn(at::Device device) const;
  at::Tensor BoundsOn(at::Device device) const;

 private:
  struct Data {
    std::vector<std::int64_t> bounds, past, longest_first;
    at::Tensor positions;
    std::int64_t limit = 0;
    mutable std::mutex mutex;
    mutable at::Tensor positions_there, bounds_there;  ///< on the device that was asked for last
  };
  Sequences(std::vector<std::int64_t> bounds, std::vector<std::int64_t> past);

  std::shared_ptr<const Data> data_;
};

}  // namespace millrace::engine::ops
