// Distributes tensors that several ranks hold, so that each is written once and all ranks write about the same number
// of bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/checkpoint/save/rank_exchange.h"
#include "millrace/checkpoint/save/save_slice.h"

namespace millrace::checkpoint {

/// A slice in a rank's memory. As SaveSlice, without the bytes.
struct HeldSlice {
  std::string name;
  TensorMeta meta;
  Box box;
  std::uint64_t begin = 0, elements = 0;
};
/// The part of one of its slices that a rank writes: `elements` elements from `begin` on, counted within the slice.
struct SliceShare {
  std::size_t slice = 0;  ///< index of the slice among those of the rank
  std::uint64_t begin = 0, elements = 0;
  bool operator==(const SliceShare&) const = default;
};

/// Returns the shares that each rank writes. `held` has the slices of each rank. If several ranks hold the same slice
/// (name, box, run), each of its elements is written once. Splits a slice if that balances the bytes over ranks. The
/// shares of a split slice have at least `least_bytes` on average. Deterministic. Takes O(n log n) for n slices.
std::vector<std::vector<SliceShare>> BalanceReplicas(const std::vector<std::vector<HeldSlice>>& held,
                                                     std::uint64_t least_bytes = 1 * kMiB);

/// Collective. Returns the slices that this rank passes to Writer::Save. `held` are the slices in its memory. Call it
/// once for a layout, not before every save. If slices of two ranks overlap but differ, returns them as they are; the
/// save then fails.
Result<std::vector<SaveSlice>> ShareReplicas(RankExchange& group, const std::vector<SaveSlice>& held);

}  // namespace millrace::checkpoint
