// What changed between two checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "millrace/checkpoint/read/reader.h"

namespace millrace::checkpoint {

struct TensorDiff {
  enum class Kind { kSame, kChanged, kReshaped, kRetyped, kOnlyInFirst, kOnlyInSecond };
  std::string name;
  Kind kind = Kind::kSame;
  TensorMeta first, second;          ///< of a tensor that has another shape or element type (kRetyped: perhaps both)
  bool by_checksum = false;          ///< same, as every chunk's CRC-32C says; nothing was read
  std::uint64_t elements = 0;        ///< of a changed tensor: those whose bytes differ
  std::optional<double> max_change;  ///< the greatest |a - b| of them, where values were asked for; NaN where one is
  std::optional<double> max_value;   ///< the greatest |a|, likewise
};
std::string_view Name(TensorDiff::Kind kind);  ///< "same", "changed", …

struct DiffOptions {
  bool values = false;               ///< read what differs as numbers
  std::uint64_t window = 16 * kMiB;  ///< read at once of each side
  int parallel = 8;
};
/// Calls `visit` for every tensor of either, in order of names. Where both lie alike in their files and the checksums
/// agree, nothing is read; else the tensor is read from both. Blocks.
Status DiffCheckpoints(Reader& first, Reader& second, const DiffOptions& options,
                       const std::function<void(const TensorDiff&)>& visit, object::Call call = {});

}  // namespace millrace::checkpoint
