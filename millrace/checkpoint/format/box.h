// Boxes of a tensor: what a tensor-, pipeline- or data-parallel rank holds of it. Pure functions.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/error.h"

namespace millrace::checkpoint {

/// The elements with offsets[i] ≤ index i < offsets[i] + lengths[i]. Both empty: the whole tensor. That is a scalar's
/// only box.
struct Box {
  std::vector<std::uint64_t> offsets;  ///< the first index in each dimension
  std::vector<std::uint64_t> lengths;  ///< the number of indexes in each dimension
  /// Returns whether it is the whole tensor.
  bool whole() const { return lengths.empty(); }
  auto operator<=>(const Box&) const = default;
};

/// Returns the number of elements of the box. `shape` is that of the tensor.
/// REQUIRES: the box lies inside the tensor.
std::uint64_t ElementsOf(const Box& box, const std::vector<std::int64_t>& shape);
/// Fails with kCorrupt unless the box lies inside a tensor of `shape`.
Status CheckBox(const Box& box, const std::vector<std::int64_t>& shape);
/// Returns the canonical form of the box: empty if it is the whole tensor.
Box Simplified(Box box, const std::vector<std::int64_t>& shape);
/// Returns "0:4,2:8"; an empty text for the whole tensor.
std::string ToString(const Box& box);

/// A run of `elements` elements of a box in C order, from its element `begin` on.
struct BoxRun {
  const Box& box;              ///< borrowed
  std::uint64_t begin = 0;     ///< the first element, counted within the box
  std::uint64_t elements = 0;  ///< their number
};
/// Calls `visit` for every maximal stretch of elements that is contiguous in both runs. Passes its first element in
/// each box (not in the run) and its length. Takes time in proportion to the number of stretches.
void ForEachCommon(const std::vector<std::int64_t>& shape, const BoxRun& a, const BoxRun& b,
                   const std::function<void(std::uint64_t in_a, std::uint64_t in_b, std::uint64_t elements)>& visit);

/// Fails with kCorrupt unless the boxes cover every element exactly once. Takes O(n log n) if cuts through the whole
/// tensor separate the boxes, as in every parallel training. Other layouts are checked pair by pair.
/// REQUIRES: no box is empty, and each lies inside the tensor.
/// Errors: kUnsupported if more than 4,096 boxes would have to be checked pair by pair, or if more than 64 cuts lie
/// inside each other.
Status CheckTiling(const std::vector<std::int64_t>& shape, std::vector<Box> boxes);

}  // namespace millrace::checkpoint
