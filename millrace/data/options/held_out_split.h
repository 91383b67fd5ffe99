// Divides the records of a data set into those for training and those held out for evaluation.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace::data {

/// A part of the records.
enum class SplitPart : std::uint8_t { kTrain, kHeldOut };

std::string_view SplitPartName(SplitPart part);  ///< "train", "held_out"
/// Returns nothing if no part has that name.
std::optional<SplitPart> ParseSplitPart(std::string_view name);

/// A hash of a record's content alone decides its part. So a record keeps its part when data are moved or added.
struct HeldOutSplit {
  double held_out = 0;                 ///< share of the records in [0, 1), in steps of 1/65536
  SplitPart part = SplitPart::kTrain;  ///< the part that is read
  std::uint64_t seed = 1;              ///< another seed holds other records out
  bool operator==(const HeldOutSplit&) const = default;
};

}  // namespace millrace::data
