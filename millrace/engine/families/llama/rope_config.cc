#include "millrace/engine/families/llama/rope_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "millrace/engine/config/config_fields.h"

namespace millrace::engine {
namespace {

using Method = RopeScaling::Method;

constexpr std::array<std::pair<std::string_view, Method>, 6> kMethodNames = {{{"default", Method::kNone},
                                                                              {"linear", Method::kLinear},
                                                                              {"llama3", Method::kLlama3},
                                                                              {"yarn", Method::kYarn},
                                                                              {"dynamic", Method::kDynamic},
                                                                              {"longrope", Method::kLongRope}}};

/// Returns the object with RoPE's settings, or null. Errors: kInvalidArgument if it is something else.
Result<const Json*> RopeObject(const Json& json, std::string_view what) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* rope = JsonFind(json, key);
    if (rope == nullptr || rope->is_null()) continue;
    if (rope->is_object()) return rope;
    return Fail(Code::kInvalidArgument, "{}: {} is {}, not an object; expected one with rope_type, or null", what, key,
                DumpJson(*rope));
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
    return Fail(Code::kInvalidArgument,
                "{}: RoPE's {} is not a list of numbers; expected one number for each pair of head_dim", what, key);
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

/// Returns max_position_embeddings of the pre-training. A key beside RoPE's object goes first, as in Phi-3's files.
Result<std::int64_t> ReadOriginalPositions(const Json& json, const Json& rope, std::int64_t max_positions) {
  const char* key = "original_max_position_embeddings";
  const std::int64_t inside = MR_TRY(OptionalInt(rope, key, max_positions));
  return OptionalInt(json, key, inside);
}

}  // namespace

Result<RopeScaling> ReadRopeScaling(const Json& json, std::string_view what, std::int64_t max_positions,
                                    double& theta) {
  theta = MR_TRY(OptionalNumber(json, "rope_theta", theta));
  RopeScaling scaling;
  const Json* rope = MR_TRY(RopeObject(json, what));
  if (rope == nullptr) return scaling;
  for (const char* kind : {"full_attention", "sliding_attention"}) {
    if (JsonFind(*rope, kind) == nullptr) continue;
    return Fail(Code::kUnsupported, "{}: RoPE's settings by kind of layer ({}) are not implemented for this model_type",
                what, kind);
  }
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

double LongRopeAttentionFactor(double factor, std::int64_t original_max_positions) {
  return factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original_max_positions)));
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
    return Fail(Code::kInvalidArgument,
                "{}: RoPE's short_factor and long_factor have {} and {} values, not {}; each needs half of head_dim",
                what, scaling.short_factors.size(), scaling.long_factors.size(), pairs);
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

}  // namespace millrace::engine
