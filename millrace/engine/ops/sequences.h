// How the tokens of a batch belong together.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace millrace::engine::ops {

/// N tokens as consecutive sequences of any lengths: a token attends within its own alone, and positions count from its
/// beginning. Immutable; copies share what they hold.
class Sequences {
 public:
  /// `rows` sequences of `length` tokens each, which follow `past` earlier ones of theirs that a cache holds.
  static Sequences Even(std::int64_t rows, std::int64_t length, std::int64_t past = 0);
  /// Sequence i is tokens bounds[i] … bounds[i+1] - 1. Throws c10::Error unless the bounds rise from 0 to `tokens`.
  static Sequences Cut(std::span<const std::int32_t> bounds, std::int64_t tokens);

  std::int64_t count() const { return static_cast<std::int64_t>(data_->bounds.size()) - 1; }
  std::int64_t tokens() const { return data_->bounds.back(); }
  std::int64_t begin(std::int64_t i) const { return data_->bounds[static_cast<std::size_t>(i)]; }
  std::int64_t length(std::int64_t i) const { return begin(i + 1) - begin(i); }
  std::int64_t longest() const { return length(longest_first().front()); }
  bool even() const { return length(longest_first().back()) == longest(); }
  /// All sequences, so that threads that take one after the other end at about the same time.
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
