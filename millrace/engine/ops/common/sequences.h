// The division of a batch's tokens into sequences.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace millrace::engine::ops {

/// N tokens, divided into consecutive sequences of any lengths. A token attends only within its sequence. Positions
/// count from the first token of the sequence. With a cache, a sequence may continue earlier tokens. Immutable. Copies
/// share their data.
class Sequences {
 public:
  /// Returns `rows` sequences of `length` tokens each. Each continues `past` earlier tokens in a cache.
  static Sequences Even(std::int64_t rows, std::int64_t length, std::int64_t past = 0);
  /// Returns sequences in which sequence i has the tokens bounds[i] … bounds[i+1] - 1.
  /// Throws c10::Error unless the bounds rise from 0 to `tokens`.
  static Sequences Cut(std::span<const std::int32_t> bounds, std::int64_t tokens);
  /// Returns sequences of these lengths. Sequence i continues `past[i]` earlier tokens in a cache.
  /// Throws c10::Error if there is no sequence, or a sequence without a token.
  static Sequences Following(std::span<const std::int64_t> lengths, std::span<const std::int64_t> past);
  /// The same, but PositionsOn() returns `positions` for the device of `positions`, a GPU. The caller may write other
  /// positions there later. Recorded work then runs again with the new positions (device/recorder.h).
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
  /// Returns the numbers of all sequences, the longest first. If free threads take them in this order, all threads end
  /// at about the same time.
  const std::vector<std::int64_t>& longest_first() const { return data_->longest_first; }
  const at::Tensor& positions() const { return data_->positions; }  ///< int32 [N], on the CPU, each below `limit()`
  std::int64_t limit() const { return data_->limit; }
  /// Return int32 tensors on `device`: the positions of all tokens; the first token of each sequence, followed by the
  /// number of all tokens, [count() + 1]. The first call for a GPU starts a copy and does not wait. Thread-safe.
  at::Tensor PositionsOn(at::Device device) const;
  at::Tensor BoundsOn(at::Device device) const;

 private:
  struct Data {
    std::vector<std::int64_t> bounds, past, longest_first;
    at::Tensor positions;
    std::int64_t limit = 0;
    mutable std::mutex mutex;
    mutable at::Tensor positions_there, bounds_there;  ///< on the device of the last call
  };
  Sequences(std::vector<std::int64_t> bounds, std::vector<std::int64_t> past);

  std::shared_ptr<const Data> data_;
};

}  // namespace millrace::engine::ops
