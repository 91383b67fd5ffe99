// The scaling of rotary positions in the Llama family: changes of the angles by which models reach beyond the positions
// of their pre-training. Keys, defaults and formulas are those of transformers' modeling_rope_utils.py.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::engine {

/// The scaling in config.json's `rope_scaling` or `rope_parameters`. Members that a method does not name are not used
/// by it.
struct RopeScaling {
  enum class Method {
    kNone,
    kLinear,    ///< all angles divided by `factor` (Chen et al. 2023)
    kLlama3,    ///< slow rotations divided by `factor`, fast ones kept, a ramp between them (Llama 3.1)
    kYarn,      ///< as kLlama3 with a ramp over dimensions, and larger logits (YaRN, Peng et al. 2023)
    kDynamic,   ///< theta grows with the length of sequences beyond max_positions (NTK-aware scaling)
    kLongRope,  ///< a divisor for each pair: one list for short sequences, one for long ones (LongRoPE, Ding et al.
                ///< 2024)
  };
  Method method = Method::kNone;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  ///< kLlama3
  double beta_fast = 32, beta_slow = 1;              ///< kYarn: rotations within the original positions
  bool truncate = true;                              ///< kYarn: the ramp begins and ends at whole dimensions
  std::vector<double> short_factors, long_factors;   ///< kLongRope, of each pair
  std::int64_t original_max_positions = 8192;        ///< kLlama3, kYarn, kLongRope
  /// kYarn, kLongRope: queries and keys are multiplied with it.
  double attention_factor = 1;
};

/// The sizes of a model that its rotary positions follow from. `head_dim`: dimensions of a head that are rotated.
struct RopeSizes {
  std::int64_t head_dim = 0, max_positions = 0;
  double theta = 10000;
};

/// Reads `rope_scaling` or, since transformers 5, `rope_parameters` of a config.json. Sets `theta`, too, if the file
/// has it. Errors: kUnsupported on a type that is not implemented, naming it; kInvalidArgument if a key is missing or
/// of another type.
Result<RopeScaling> ReadRopeScaling(const Json& json, std::string_view what, std::int64_t max_positions, double& theta);

/// Returns the factor of queries and keys that LongRoPE has for this factor of positions, if a file does not say more.
double LongRopeAttentionFactor(double factor, std::int64_t original_max_positions);

/// Returns the value of `rope_scaling`. REQUIRES: method is not kNone.
Json RopeScalingJson(const RopeScaling& scaling);

/// Errors: kInvalidArgument on values that no angles follow from.
Status CheckRopeScaling(const RopeScaling& scaling, const RopeSizes& sizes, std::string_view what);

/// Returns the number of positions that a model can use: with kDynamic `factor` times max_positions, else
/// max_positions.
std::int64_t RopePositions(const RopeScaling& scaling, std::int64_t max_positions);

}  // namespace millrace::engine
