// The division of a batch's tokens into sequences.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace millrace::engine::ops {

/// N tokens as consecutive sequences of any lengths. A token attends only within its sequence, and positions count from
/// the sequence's first token. Immutable. Copies share their data.
class Sequences {
 public:
  /// Returns `rows` sequences of `length` tokens each. Each follows `past` earlier tokens that a cache has.
  static Sequences Even(std::int64_t rows, std::int64_t length, std::int64_t past = 0);
  /// Returns sequences where sequence i is tokens bounds[i] … bounds[i+1] - 1.
  /// Throws c10::Error unless the bounds rise from 0 to `tokens`.
  static Sequences Cut(std::span<const std::int32_t> bounds, std::int64_t tokens);

  std::int64_t count() const { return static_cast<std::int64_t>(data_->bounds.size()) - 1; }
  std::int64_t tokens() const { return data_->bounds.back(); }
  std::int64_t begin(std::int64_t i) const { return data_->bounds[static_cast<std::size_t>(i)]; }
  std::int64_t length(std::int64_t i) const { return begin(i + 1) - begin(i); }
  std::int64_t longest() const { return length(longest_first().front()); }
  bool even() const { return length(longest_first().back()) == longest(); }
  /// Returns the numbers of all sequences, the longest first. Threads that take the next one when they are free then
  /// end at about the same time.
  const std::vector<std::int64_t>& longest_first() const { return data_->longest_first; }
  const at::Tensor& positions() const { return data_->positions; }  ///< int32 [N], on the CPU, each below `limit()`
  std::int64_t limit() const { return data_->past + longest(); }

 private:
  struct Data {
    std::vector<std::int64_t> bounds, longest_first;
    at::Tensor positions;
    std::int64_t past = 0;
  };
  Sequences(std::vector<std::int64_t> bounds, std::int64_t past);

  std::shared_ptr<const Data> data_;
};

}  // namespace millrace::engine::ops
