// The slice of a whole tensor that a rank holds.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::engine {

/// A range along one dimension, and all of the others. A default slice is the whole tensor.
struct TensorSlice {
  std::size_t dim = 0;
  std::int64_t begin = 0, extent = 0;  ///< extent 0: all
  bool whole() const { return extent == 0; }
  /// Returns the shape of the slice of a tensor of `shape`.
  std::vector<std::int64_t> ShapeOf(std::vector<std::int64_t> shape) const {
    if (!whole()) shape[dim] = extent;
    return shape;
  }
  bool operator==(const TensorSlice&) const = default;
};

}  // namespace millrace::engine
