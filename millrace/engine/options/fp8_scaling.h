// The rounding of the inputs of linear layers to 8 bits. Plain data, without libtorch.
#pragma once

#include <optional>
#include <string_view>

namespace millrace::engine::ops {

/// The numbers that share a scale when products of linear layers round their inputs to 8 bits, and its origin.
enum class Fp8Scaling {
  kNone,     ///< products are not made in FP8
  kCurrent,  ///< those of a tensor; from its largest value
  kDelayed,  ///< those of a tensor; from its largest values in earlier steps: LargestValues
  kBlock,    ///< 128 of a row or column, for weights squares of 128 x 128 (DeepSeek-V3, 2024); from their largest value
};
/// "none", "current", "delayed", "block"
std::string_view Fp8ScalingName(Fp8Scaling scaling);
std::optional<Fp8Scaling> ParseFp8Scaling(std::string_view name);

}  // namespace millrace::engine::ops
