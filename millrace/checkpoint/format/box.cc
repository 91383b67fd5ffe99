#include "millrace/checkpoint/format/box.h"

#include <algorithm>

#include "millrace/base/result.h"

namespace millrace::checkpoint {
namespace {

/// The most boxes for the check of all pairs: 8 million intersections, as a guess at what takes less than a second.
constexpr std::size_t kMaxTangled = 4096;
/// The deepest nesting of cuts. Bounds recursion. A guess: parallel training cuts each dimension once or twice.
constexpr int kMaxCuts = 64;

Box Explicit(const Box& box, const std::vector<std::int64_t>& shape) {
  if (!box.whole()) return box;
  return {std::vector<std::uint64_t>(shape.size(), 0), {shape.begin(), shape.end()}};
}

/// Returns the distance between neighbours along each dimension, in elements.
std::vector<std::uint64_t> Strides(const std::vector<std::uint64_t>& lengths) {
  std::vector<std::uint64_t> strides(lengths.size(), 1);
  for (std::size_t i = lengths.size(); i-- > 1;) strides[i - 1] = strides[i] * lengths[i];
  return strides;
}

std::uint64_t End(const Box& box, std::size_t dimension) { return box.offsets[dimension] + box.lengths[dimension]; }

/// Sets `common` to the intersection. Returns false if it is empty.
bool Intersect(const Box& a, const Box& b, Box& common) {
  common.offsets.resize(a.offsets.size());
  common.lengths.resize(a.offsets.size());
  for (std::size_t i = 0; i < a.offsets.size(); ++i) {
    const std::uint64_t begin = std::max(a.offsets[i], b.offsets[i]), end = std::min(End(a, i), End(b, i));
    if (begin >= end) return false;
    common.offsets[i] = begin;
    common.lengths[i] = end - begin;
  }
  return true;
}

/// Shrinks `common` along the first dimension to the indexes that the run touches. Returns false if none is left.
bool Narrow(Box& common, const Box& box, std::uint64_t stride, const BoxRun& run) {
  const std::uint64_t first = box.offsets[0] + run.begin / stride;
  const std::uint64_t last = box.offsets[0] + (run.begin + run.elements - 1) / stride;
  const std::uint64_t begin = std::max(common.offsets[0], first), end = std::min(End(common, 0), last + 1);
  if (begin >= end) return false;
  common.offsets[0] = begin;
  common.lengths[0] = end - begin;
  return true;
}

Error Uncovered(const Box& region) {
  return Error(Code::kCorrupt, fmt::format("[{}] is covered by no file", ToString(region)));
}

/// Checks that boxes cover a region exactly once. Cuts the region recursively along planes that no box crosses.
class Tiling {
 public:
  /// Sorts the boxes.
  /// REQUIRES: all `boxes` lie inside `region`.
  static Status Check(std::span<Box> boxes, const Box& region, int cuts_left) {
    if (boxes.empty()) return Fail(Uncovered(region));
    if (boxes.size() == 1) return boxes[0] == region ? Status() : Fail(Uncovered(region));
    for (std::size_t dimension = 0; dimension < region.offsets.size(); ++dimension) {
      const std::vector<std::size_t> groups = MR_TRY(Cut(boxes, region, dimension));
      if (groups.size() == 2) continue;  // one group: no plane separates the boxes
      if (cuts_left == 0) return Fail(Code::kUnsupported, "more than {} cuts inside each other", kMaxCuts);
      for (std::size_t group = 0; group + 1 < groups.size(); ++group) {
        auto part = boxes.subspan(groups[group], groups[group + 1] - groups[group]);
        Box slab = region;
        slab.offsets[dimension] = part[0].offsets[dimension];
        slab.lengths[dimension] =
            (groups[group + 1] < boxes.size() ? boxes[groups[group + 1]].offsets[dimension] : End(region, dimension)) -
            slab.offsets[dimension];
        MR_TRY(Check(part, slab, cuts_left - 1));
      }
      return {};
    }
    return CheckPairs(boxes, region);
  }

 private:
  /// Sorts the boxes along a dimension. Returns the index of the first box of each group, and boxes.size(). Planes
  /// separate the groups.
  static Result<std::vector<std::size_t>> Cut(std::span<Box> boxes, const Box& region, std::size_t dimension) {
    std::sort(boxes.begin(), boxes.end(),
              [&](const Box& a, const Box& b) { return a.offsets[dimension] < b.offsets[dimension]; });
    std::vector<std::size_t> groups;
    std::uint64_t reached = region.offsets[dimension];
    auto gap = [&](std::uint64_t end) {
      Box slab = region;
      slab.offsets[dimension] = reached;
      slab.lengths[dimension] = end - reached;
      return Uncovered(slab);
    };
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      const std::uint64_t begin = boxes[i].offsets[dimension];
      if (begin > reached) return Fail(gap(begin));
      if (begin == reached) groups.push_back(i);
      reached = std::max(reached, End(boxes[i], dimension));
    }
    if (reached != End(region, dimension)) return Fail(gap(End(region, dimension)));
    groups.push_back(boxes.size());
    return groups;
  }

  /// Checks boxes that no plane separates: compares all pairs.
  static Status CheckPairs(std::span<Box> boxes, const Box& region) {
    if (boxes.size() > kMaxTangled)
      return Fail(Code::kUnsupported, "{} boxes that no cut through the tensor separates", boxes.size());
    std::uint64_t sum = 0;
    Box common;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      sum += ElementsOf(boxes[i], {});
      for (std::size_t j = 0; j < i; ++j)
        if (Intersect(boxes[i], boxes[j], common))
          return Fail(Code::kCorrupt, "[{}] is covered twice", ToString(common));
    }
    return sum == ElementsOf(region, {}) ? Status() : Fail(Uncovered(region));
  }
};

}  // namespace

std::uint64_t ElementsOf(const Box& box, const std::vector<std::int64_t>& shape) {
  std::uint64_t product = 1;
  if (box.whole()) {
    for (std::int64_t length : shape) product *= static_cast<std::uint64_t>(length);
  } else {
    for (std::uint64_t length : box.lengths) product *= length;
  }
  return product;
}

Status CheckBox(const Box& box, const std::vector<std::int64_t>& shape) {
  bool inside = box.offsets.size() == box.lengths.size() && (box.whole() || box.lengths.size() == shape.size());
  for (std::size_t i = 0; inside && i < box.lengths.size(); ++i) {
    const auto length = static_cast<std::uint64_t>(shape[i]);
    inside = box.lengths[i] <= length && box.offsets[i] <= length - box.lengths[i];
  }
  if (!inside) return Fail(Code::kCorrupt, "the box [{}] does not lie inside the tensor", ToString(box));
  return {};
}

Box Simplified(Box box, const std::vector<std::int64_t>& shape) {
  return std::ranges::equal(box.lengths, shape, [](std::uint64_t a, std::int64_t b) { return std::cmp_equal(a, b); })
             ? Box{}
             : std::move(box);
}

std::string ToString(const Box& box) {
  std::string text;
  for (std::size_t i = 0; i < std::min(box.offsets.size(), box.lengths.size()); ++i)
    text += fmt::format("{}{}:{}", i == 0 ? "" : ",", box.offsets[i], box.offsets[i] + box.lengths[i]);
  return text;
}

void ForEachCommon(const std::vector<std::int64_t>& shape, const BoxRun& a, const BoxRun& b,
                   const std::function<void(std::uint64_t, std::uint64_t, std::uint64_t)>& visit) {
  const Box box_a = Explicit(a.box, shape), box_b = Explicit(b.box, shape);
  Box common;
  if (a.elements == 0 || b.elements == 0 || !Intersect(box_a, box_b, common)) return;
  const auto strides_a = Strides(box_a.lengths), strides_b = Strides(box_b.lengths);
  // From dimension `inner` on, the common elements are contiguous in both boxes.
  std::size_t inner = common.lengths.empty() ? 0 : common.lengths.size() - 1;
  while (inner > 0 && common.lengths[inner] == box_a.lengths[inner] && common.lengths[inner] == box_b.lengths[inner])
    --inner;
  if (inner > 0 && !(Narrow(common, box_a, strides_a[0], a) && Narrow(common, box_b, strides_b[0], b))) return;
  std::uint64_t stretch = 1;
  for (std::size_t i = inner; i < common.lengths.size(); ++i) stretch *= common.lengths[i];

  std::vector<std::uint64_t> index(common.offsets.begin(), common.offsets.end());
  while (true) {
    std::uint64_t in_a = 0, in_b = 0;
    for (std::size_t i = 0; i < index.size(); ++i) {
      in_a += (index[i] - box_a.offsets[i]) * strides_a[i];
      in_b += (index[i] - box_b.offsets[i]) * strides_b[i];
    }
    // The part of the stretch that lies in both runs.
    const std::uint64_t skip_a = a.begin > in_a ? a.begin - in_a : 0, skip_b = b.begin > in_b ? b.begin - in_b : 0;
    const std::uint64_t left_a = a.begin + a.elements > in_a ? a.begin + a.elements - in_a : 0;
    const std::uint64_t left_b = b.begin + b.elements > in_b ? b.begin + b.elements - in_b : 0;
    const std::uint64_t first = std::max(skip_a, skip_b), last = std::min({stretch, left_a, left_b});
    if (first < last) visit(in_a + first, in_b + first, last - first);
    std::size_t i = inner;
    while (i > 0 && ++index[i - 1] == End(common, i - 1)) {
      index[i - 1] = common.offsets[i - 1];
      --i;
    }
    if (i == 0) return;
  }
}

Status CheckTiling(const std::vector<std::int64_t>& shape, std::vector<Box> boxes) {
  for (Box& box : boxes) box = Explicit(box, shape);
  return Tiling::Check(boxes, Explicit({}, shape), kMaxCuts);
}

}  // namespace millrace::checkpoint
