// Compares two checkpoints tensor by tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "millrace/checkpoint/read/reader.h"

namespace millrace::checkpoint {

struct TensorDiff {
  enum class Change { kSame, kChanged, kReshaped, kRetyped, kOnlyInFirst, kOnlyInSecond };
  std::string name;
  Change change = Change::kSame;
  TensorMeta first, second;          ///< set if shape or element type differ; for kRetyped both may differ
  bool by_checksum = false;          ///< whether equal checksums of all chunks proved kSame without reading
  std::uint64_t elements = 0;        ///< of a changed tensor: how many differ
  std::optional<double> max_change;  ///< the greatest |a - b|, if DiffOptions::values; NaN if one is NaN
  std::optional<double> max_value;   ///< the greatest |a| of the elements that differ, if DiffOptions::values
};
std::string_view Name(TensorDiff::Change change);  ///< "same", "changed", …

struct DiffOptions {
  bool values = false;               ///< compare elements that differ as numbers
  std::uint64_t window = 16 * kMiB;  ///< bytes that are read at once from each checkpoint
  int parallel = 8;
};
/// Calls `visit` for every tensor of either checkpoint, in order of names. A tensor that lies alike in both
/// checkpoints' files and has equal checksums is not read; any other tensor is read from both. Blocks.
Status DiffCheckpoints(Reader& first, Reader& second, const DiffOptions& options,
                       const std::function<void(const TensorDiff&)>& visit, object::Call call = {});

}  // namespace millrace::checkpoint
