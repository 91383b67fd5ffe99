#include "millrace/engine/families/llama/rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "millrace/engine/models/config_fields.h"
#include "millrace/engine/ops/rotary.h"

namespace millrace::engine {
namespace {

using Method = RopeScaling::Method;

constexpr std::array<std::pair<std::string_view, Method>, 6> kMethodNames = {{{"default", Method::kNone},
                                                                              {"linear", Method::kLinear},
                                                                              {"llama3", Method::kLlama3},
                                                                              {"yarn", Method::kYarn},
                                                                              {"dynamic", Method::kDynamic},
                                                                              {"longrope", Method::kLongRope}}};

/// Returns the object with RoPE's settings, or null.
const Json* RopeObject(const Json& json) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* rope = JsonFind(json, key);
    if (rope != nullptr && rope->is_object()) return rope;
  }
  return nullptr;
}

Result<Method> ReadMethod(const Json& rope, std::string_view what) {
  const std::string old_name = MR_TRY(OptionalText(rope, "type", "default"));
  const std::string type = MR_TRY(OptionalText(rope, "rope_type", old_name));
  for (const auto& [name, method] : kMethodNames) {
    if (name == type) return method;
  }
  return Fail(Code::kUnsupported,
              "{}: RoPE scaling of type \"{}\" is not implemented; linear, llama3, yarn, dynamic and longrope are",
              what, type);
}

Result<std::vector<double>> ReadFactors(const Json& rope, std::string_view key, std::string_view what) {
  const Json* list = JsonFind(rope, key);
  std::vector<double> factors;
  const bool is_list = list != nullptr && list->is_array();
  if (is_list) {
    for (const Json& each : *list) {
      if (each.is_number()) factors.push_back(each.get<double>());
    }
  }
  if (!is_list || factors.size() != list->size()) {
    return Fail(Code::kInvalidArgument, "{}: RoPE's {} is not a list of numbers", what, key);
  }
  return factors;
}

/// YaRN's factor of logits, as a factor of queries and of keys.
double YarnScale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

Result<double> YarnAttentionFactor(const Json& rope, double factor) {
  const double mscale = MR_TRY(OptionalNumber(rope, "mscale", 0));
  const double mscale_all_dim = MR_TRY(OptionalNumber(rope, "mscale_all_dim", 0));
  if (mscale == 0 || mscale_all_dim == 0) return YarnScale(factor, 1);
  return YarnScale(factor, mscale) / YarnScale(factor, mscale_all_dim);
}

double LongRopeAttentionFactor(double factor, std::int64_t original) {
  return factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original)));
}

/// Returns max_position_embeddings of the pre-training. A key beside RoPE's object goes first, as in Phi-3's files.
Result<std::int64_t> ReadOriginalPositions(const Json& json, const Json& rope, std::int64_t max_positions) {
  const char* key = "original_max_position_embeddings";
  const std::int64_t inside = MR_TRY(OptionalInt(rope, key, max_positions));
  return OptionalInt(json, key, inside);
}

/// A wave shorter than original/high keeps its frequency, one longer than original/low is slowed by the factor, and
/// those between are interpolated.
float Llama3Frequency(float frequency, const RopeScaling& scaling) {
  const auto original = static_cast<double>(scaling.original_max_positions);
  const auto factor = static_cast<float>(scaling.factor);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / factor;
  const double smooth =
      (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return static_cast<float>((1 - smooth) * frequency / factor + smooth * frequency);
}

/// Returns the dimension whose pair turns `rotations` times within the original positions.
double YarnDimension(double rotations, const RopeScaling& scaling, const RopeSizes& sizes) {
  const auto original = static_cast<double>(scaling.original_max_positions);
  return static_cast<double>(sizes.head_dim) * std::log(original / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(sizes.theta));
}

/// Pairs before `low` keep their frequency, those behind `high` are slowed by the factor, with a ramp between them.
void SlowAsYarn(std::vector<float>& frequencies, const RopeScaling& scaling, const RopeSizes& sizes) {
  double low = YarnDimension(scaling.beta_fast, scaling, sizes);
  double high = YarnDimension(scaling.beta_slow, scaling, sizes);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(sizes.head_dim - 1));
  if (low == high) high += 0.001;  // transformers' guard against a division by zero
  const auto factor = static_cast<float>(scaling.factor);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const auto slowed = static_cast<float>(std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0));
    frequencies[i] = frequencies[i] / factor * slowed + frequencies[i] * (1 - slowed);
  }
}

/// The base at which the slowest pair turns as far over `length` positions as it did over max_positions / factor.
double DynamicTheta(const RopeScaling& scaling, const RopeSizes& sizes, std::int64_t length) {
  const auto dim = static_cast<double>(sizes.head_dim);
  const double stretched = static_cast<double>(std::max(length, sizes.max_positions));
  const double growth = scaling.factor * stretched / static_cast<double>(sizes.max_positions) - (scaling.factor - 1);
  return sizes.theta * std::pow(growth, dim / (dim - 2));
}

}  // namespace

Result<RopeScaling> ReadRopeScaling(const Json& json, std::string_view what, std::int64_t max_positions,
                                    double& theta) {
  theta = MR_TRY(OptionalNumber(json, "rope_theta", 10000));
  RopeScaling scaling;
  const Json* rope = RopeObject(json);
  if (rope == nullptr) return scaling;
  theta = MR_TRY(OptionalNumber(*rope, "rope_theta", theta));
  scaling.method = MR_TRY(ReadMethod(*rope, what));
  if (scaling.method == Method::kNone) return scaling;
  if (scaling.method == Method::kLlama3 || scaling.method == Method::kYarn || scaling.method == Method::kLongRope) {
    scaling.original_max_positions = MR_TRY(ReadOriginalPositions(json, *rope, max_positions));
  }
  const double ratio = static_cast<double>(max_positions) / static_cast<double>(scaling.original_max_positions);
  const bool may_lack_factor = scaling.method == Method::kYarn || scaling.method == Method::kLongRope;
  scaling.factor =
      may_lack_factor ? MR_TRY(OptionalNumber(*rope, "factor", ratio)) : MR_TRY(JsonNumber(*rope, "factor"));
  if (scaling.method == Method::kLlama3) {
    scaling.low_freq_factor = MR_TRY(JsonNumber(*rope, "low_freq_factor"));
    scaling.high_freq_factor = MR_TRY(JsonNumber(*rope, "high_freq_factor"));
  }
  double attention_factor = 1;
  if (scaling.method == Method::kYarn) {
    scaling.beta_fast = MR_TRY(OptionalNumber(*rope, "beta_fast", 32));
    scaling.beta_slow = MR_TRY(OptionalNumber(*rope, "beta_slow", 1));
    scaling.truncate = MR_TRY(OptionalFlag(*rope, "truncate", true));
    attention_factor = MR_TRY(YarnAttentionFactor(*rope, scaling.factor));
  }
  if (scaling.method == Method::kLongRope) {
    scaling.short_factors = MR_TRY(ReadFactors(*rope, "short_factor", what));
    scaling.long_factors = MR_TRY(ReadFactors(*rope, "long_factor", what));
    attention_factor = LongRopeAttentionFactor(scaling.factor, scaling.original_max_positions);
  }
  if (may_lack_factor) scaling.attention_factor = MR_TRY(OptionalNumber(*rope, "attention_factor", attention_factor));
  return scaling;
}

Json RopeScalingJson(const RopeScaling& scaling) {
  const auto* const found =
      std::ranges::find(kMethodNames, scaling.method, [](const auto& each) { return each.second; });
  Json json = {{"rope_type", found->first}, {"factor", scaling.factor}};
  switch (scaling.method) {
    case Method::kNone:
    case Method::kLinear:
    case Method::kDynamic:
      return json;
    case Method::kLlama3:
      json["low_freq_factor"] = scaling.low_freq_factor;
      json["high_freq_factor"] = scaling.high_freq_factor;
      break;
    case Method::kYarn:
      json["beta_fast"] = scaling.beta_fast;
      json["beta_slow"] = scaling.beta_slow;
      json["truncate"] = scaling.truncate;
      json["attention_factor"] = scaling.attention_factor;
      break;
    case Method::kLongRope:
      json["short_factor"] = scaling.short_factors;
      json["long_factor"] = scaling.long_factors;
      json["attention_factor"] = scaling.attention_factor;
      break;
  }
  json["original_max_position_embeddings"] = scaling.original_max_positions;
  return json;
}

Status CheckRopeScaling(const RopeScaling& scaling, const RopeSizes& sizes, std::string_view what) {
  if (!(sizes.theta > 0) || !(scaling.factor > 0) || !(scaling.attention_factor > 0) ||
      scaling.original_max_positions < 1) {
    return Fail(Code::kInvalidArgument,
                "{}: rope_theta, RoPE's factors and original_max_position_embeddings must be positive", what);
  }
  switch (scaling.method) {
    case Method::kNone:
    case Method::kLinear:
      return {};
    case Method::kLlama3:
      if (scaling.low_freq_factor > 0 && scaling.high_freq_factor > scaling.low_freq_factor) return {};
      return Fail(Code::kInvalidArgument,
                  "{}: RoPE's high_freq_factor must be greater than low_freq_factor, and both positive", what);
    case Method::kYarn:
      if (scaling.beta_slow > 0 && scaling.beta_fast >= scaling.beta_slow && sizes.theta > 1) return {};
      return Fail(Code::kInvalidArgument,
                  "{}: RoPE's beta_fast must be at least beta_slow, both positive and rope_theta above 1", what);
    case Method::kDynamic:
      if (scaling.factor >= 1 && scaling.factor <= 1024 && sizes.head_dim > 2) return {};
      return Fail(Code::kInvalidArgument,
                  "{}: dynamic RoPE scaling needs a factor of 1 to 1024 and heads of more than 2 dimensions; they are "
                  "{} and {}",
                  what, scaling.factor, sizes.head_dim);
    case Method::kLongRope:
      break;
  }
  const auto pairs = static_cast<std::size_t>(sizes.head_dim / 2);
  if (scaling.short_factors.size() != pairs || scaling.long_factors.size() != pairs) {
    return Fail(Code::kInvalidArgument, "{}: RoPE's short_factor and long_factor have {} and {} values, not {}", what,
                scaling.short_factors.size(), scaling.long_factors.size(), pairs);
  }
  const auto is_positive = [](double value) { return value > 0; };
  if (!std::ranges::all_of(scaling.short_factors, is_positive) ||
      !std::ranges::all_of(scaling.long_factors, is_positive) || scaling.original_max_positions < 2) {
    return Fail(Code::kInvalidArgument,
                "{}: RoPE's short_factor and long_factor must be positive, and original_max_position_embeddings at "
                "least 2",
                what);
  }
  return {};
}

std::int64_t RopePositions(const RopeScaling& scaling, std::int64_t max_positions) {
  if (scaling.method != Method::kDynamic) return max_positions;
  return static_cast<std::int64_t>(scaling.factor * static_cast<double>(max_positions));
}

std::vector<float> RopeFrequencies(const RopeScaling& scaling, const RopeSizes& sizes, std::int64_t length) {
  if (scaling.method == Method::kDynamic) {
    return ops::RotaryFrequencies(sizes.head_dim, DynamicTheta(scaling, sizes, length));
  }
  std::vector<float> frequencies = ops::RotaryFrequencies(sizes.head_dim, sizes.theta);
  const auto factor = static_cast<float>(scaling.factor);
  if (scaling.method == Method::kLinear) {
    for (float& frequency : frequencies) frequency /= factor;
  } else if (scaling.method == Method::kLlama3) {
    for (float& frequency : frequencies) frequency = Llama3Frequency(frequency, scaling);
  } else if (scaling.method == Method::kYarn) {
    SlowAsYarn(frequencies, scaling, sizes);
  } else if (scaling.method == Method::kLongRope) {
    const bool is_long = length > scaling.original_max_positions;
    const std::vector<double>& factors = is_long ? scaling.long_factors : scaling.short_factors;
    for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= static_cast<float>(factors[i]);
  }
  return frequencies;
}

RotaryPositions MakeRotaryPositions(const RopeScaling& scaling, const RopeSizes& sizes, at::Device device) {
  const auto table = [scaling, sizes, device](std::int64_t length) {
    return ops::RotaryTable::Make(length, RopeFrequencies(scaling, sizes, length), ops::RotaryPairs::kHalves, device,
                                  scaling.attention_factor);
  };
  const std::int64_t most = RopePositions(scaling, sizes.max_positions);
  if (scaling.method == Method::kDynamic) {
    return {most, [most = sizes.max_positions](std::int64_t length) { return std::max(length, most); }, table};
  }
  if (scaling.method == Method::kLongRope) {
    const std::int64_t shortest = std::min(scaling.original_max_positions, most);
    return {most, [=](std::int64_t length) { return length > shortest ? most : shortest; }, table};
  }
  return RotaryPositions(table(most));
}

}  // namespace millrace::engine
