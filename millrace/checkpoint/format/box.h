// Boxes of a tensor: what tensor-, pipeline- and data-parallel ranks hold of it. Pure functions.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::checkpoint {

/// The elements with offsets[i] ≤ index i < offsets[i] + lengths[i]. Both empty: the whole tensor, a scalar's only box.
struct Box {
  std::vector<std::uint64_t> offsets, lengths;
  bool whole() const { return lengths.empty(); }
  auto operator<=>(const Box&) const = default;
};

/// The box's elements; `shape` is that of its tensor, in which the box lies.
std::uint64_t ElementsOf(const Box& box, const std::vector<std::int64_t>& shape);
/// kCorrupt unless the box lies inside a tensor of `shape`.
Status CheckBox(const Box& box, const std::vector<std::int64_t>& shape);
/// The one spelling of the box: empty where it is the whole tensor.
Box Simplified(Box box, const std::vector<std::int64_t>& shape);
/// "0:4,2:8"; the whole tensor's is empty.
std::string ToString(const Box& box);

/// `elements` of a box in C order, from its element `begin` on.
struct BoxRun {
  const Box& box;
  std::uint64_t begin = 0, elements = 0;
};
/// Calls `visit` for every longest stretch of elements that lies side by side in both runs, with its place in each
/// box (not in the run) and its length. Takes time in proportion to the stretches.
void ForEachCommon(const std::vector<std::int64_t>& shape, const BoxRun& a, const BoxRun& b,
                   const std::function<void(std::uint64_t in_a, std::uint64_t in_b, std::uint64_t elements)>& visit);

/// kCorrupt unless the boxes, none of them empty and each inside the tensor, cover every element exactly once. Layouts
/// that cuts through the whole tensor make, as those of every parallel training do, take n log n; of others up to 4,096
/// boxes are checked pair by pair and more are kUnsupported.
Status CheckTiling(const std::vector<std::int64_t>& shape, std::vector<Box> boxes);

}  // namespace millrace::checkpoint
