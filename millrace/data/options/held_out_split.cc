#include "millrace/data/options/held_out_split.h"

namespace millrace::data {

std::string_view SplitPartName(SplitPart part) { return part == SplitPart::kTrain ? "train" : "held_out"; }

std::optional<SplitPart> ParseSplitPart(std::string_view name) {
  for (SplitPart part : {SplitPart::kTrain, SplitPart::kHeldOut}) {
    if (SplitPartName(part) == name) return part;
  }
  return std::nullopt;
}

}  // namespace millrace::data
