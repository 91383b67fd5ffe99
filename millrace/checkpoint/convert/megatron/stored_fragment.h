// Cuts the stored parts of a tensor into parts of the tensors that it is stacked of. Pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/megatron/megatron_names.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"

namespace millrace::checkpoint {

/// The part of a tensor of Megatron that a file has. The box is explicit, never empty. A part without elements is the
/// whole box.
struct StoredFragment {
  SourceBox part;
  std::uint64_t element_bytes = 0;
};

/// Returns the fragment of a tensor of `shape` that was stored as `part` of a tensor of another shape: the numbers of
/// fragments in each dimension, and behind them the elements of a fragment. The distributed optimizer did this up to
/// Megatron-Core 0.13, when a data-parallel rank had a run of a fragment.
/// Errors: kCorrupt if the shapes do not fit.
Result<SourceBox> UnflattenedPart(const SourceBox& part, const std::vector<std::int64_t>& stored,
                                  const std::vector<std::int64_t>& shape);

/// Calls `add` for every part of a stacked tensor that the fragment has: with the layer (0 if the tensor has no
/// dimension of layers) and the part, whose tensor's name is still empty.
/// REQUIRES: `layers` only if dimension 0 of the tensor counts layers. The tensor has another dimension, the rows.
void CutFragment(const StoredFragment& fragment, bool layers, const std::vector<RowSpan>& spans,
                 const std::function<void(std::uint64_t layer, SourceBox part)>& add);

}  // namespace millrace::checkpoint
