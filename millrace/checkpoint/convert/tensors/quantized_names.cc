#include "millrace/checkpoint/convert/tensors/quantized_names.h"

#include <algorithm>
#include <bit>

#include "millrace/engine/quantized/quantize.h"

namespace millrace::checkpoint {
namespace {

using engine::Quantization;
using Kind = QuantizedPart::Kind;

constexpr std::string_view kWeight = ".weight";

/// The names of torch's types.
std::string_view TorchName(DType dtype) {
  if (dtype == DType::kF16) return "float16";
  return dtype == DType::kBF16 ? "bfloat16" : "float32";
}

bool IsNumber(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

/// The scheme that llm-compressor names FP8_DYNAMIC: a scale for each row of a weight, and for each token of inputs.
Json CompressedTensorsConfig(const std::vector<std::string>& skipped) {
  const auto numbers = [](std::string_view strategy, bool dynamic) {
    return Json{{"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"strategy", strategy}, {"dynamic", dynamic}};
  };
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"quantization_status", "compressed"},
          {"ignore", skipped},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"weights", numbers("channel", false)},
              {"input_activations", numbers("token", true)}}}}}};
}

std::int64_t Quotient(std::uint64_t elements, std::size_t block) {
  return static_cast<std::int64_t>((elements + block - 1) / block);
}

}  // namespace

bool IsQuantizable(std::string_view name, const TensorMeta& meta) {
  const bool is_float = meta.dtype == DType::kF32 || meta.dtype == DType::kF16 || meta.dtype == DType::kBF16;
  if (!is_float || meta.shape.size() != 2 || meta.elements() == 0 || !name.ends_with(kWeight)) return false;
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    if (IsNumber(name.substr(begin, end - begin))) return true;
    begin = end + 1;
  }
  return false;
}

std::vector<QuantizedPart> PartsOf(const std::string& weight, const TensorMeta& meta, Quantization kind) {
  const auto part = [&](Kind what, std::string name, DType dtype, std::vector<std::int64_t> shape) {
    return QuantizedPart{weight, what, {std::move(name), {dtype, std::move(shape)}}};
  };
  if (kind == Quantization::kInt8) {
    const std::string module = weight.substr(0, weight.size() - kWeight.size());
    return {part(Kind::kCodes, weight, DType::kI8, meta.shape),
            part(Kind::kRowScales, module + std::string(kRowScalesSuffix), DType::kF32, {meta.shape[0]}),
            part(Kind::kFormat, module + std::string(kFormatSuffix), DType::kU8, {})};
  }
  const auto named = [&](std::string_view suffix) { return weight + std::string(suffix); };
  if (kind == Quantization::kFp8) {
    return {part(Kind::kCodes, weight, DType::kF8E4M3, meta.shape),
            part(Kind::kRowScales, named(kFp8ScalesSuffix), DType::kF32, {meta.shape[0], 1})};
  }
  const std::uint64_t elements = meta.elements();
  const std::int64_t scales = Quotient(elements, engine::kNf4Block);
  const std::int64_t scale_scales = Quotient(static_cast<std::uint64_t>(scales), engine::kScaleBlock);
  return {part(Kind::kCodes, weight, DType::kU8, {Quotient(elements, 2), 1}),
          part(Kind::kScales, named(kScalesSuffix), DType::kU8, {scales}),
          part(Kind::kState, named(kNf4StateSuffix), DType::kU8, {static_cast<std::int64_t>(kStateBytes)}),
          part(Kind::kScaleScales, named(kScaleScalesSuffix), DType::kF32, {scale_scales}),
          part(Kind::kScaleMap, named(kScaleMapSuffix), DType::kF32, {256}),
          part(Kind::kMap, named(kMapSuffix), DType::kF32, {16})};
}

std::string FormatState(const QuantState& state, std::size_t bytes) {
  Json json{
      {"quant_type", "nf4"}, {"blocksize", state.block}, {"dtype", TorchName(state.dtype)}, {"shape", state.shape}};
  if (state.scale_offset) {
    json["nested_blocksize"] = state.scale_block;
    json["nested_dtype"] = "float32";
    json["nested_offset"] = static_cast<double>(*state.scale_offset);
  }
  std::string text = json.dump();
  text.resize(std::max(bytes, text.size()), ' ');
  return text;
}

Result<QuantState> ParseState(std::string_view text, std::string_view name) {
  const Json json = MR_TRY(ParseJson(text, name));
  const auto corrupt = [&](std::string_view key) {
    return Fail(Code::kCorrupt, "{}: {} is not what bitsandbytes writes", name, key);
  };
  const auto number = [&](std::string_view key) -> std::optional<std::int64_t> {
    const Json* value = JsonFind(json, key);
    if (value == nullptr || !value->is_number_integer()) return std::nullopt;
    return value->get<std::int64_t>();
  };
  QuantState state;
  const Json* shape = JsonFind(json, "shape");
  if (shape == nullptr || !shape->is_array() || shape->size() != 2) return corrupt("shape");
  for (const Json& extent : *shape) {
    constexpr std::int64_t kMax = std::int64_t{1} << 31;  // so that products do not overflow
    if (!extent.is_number_integer() || extent < 1 || extent > kMax) return corrupt("shape");
    state.shape.push_back(extent.get<std::int64_t>());
  }
  constexpr std::int64_t kMaxBlock = 4096;  // bitsandbytes' own bound
  const auto block = number("blocksize");
  if (!block || *block < 2 || *block > kMaxBlock || *block % 2 != 0) return corrupt("blocksize");
  state.block = static_cast<int>(*block);
  const std::string dtype = JsonString(json, "dtype").value_or("");
  state.dtype = dtype == "float16" ? DType::kF16 : dtype == "bfloat16" ? DType::kBF16 : DType::kF32;
  if (const Json* offset = JsonFind(json, "nested_offset")) {
    const auto scale_block = number("nested_blocksize");
    if (!offset->is_number()) return corrupt("nested_offset");
    if (!scale_block || *scale_block < 1 || *scale_block > kMaxBlock) return corrupt("nested_blocksize");
    state.scale_offset = offset->get<float>();
    state.scale_block = static_cast<int>(*scale_block);
  }
  return state;
}

Json QuantizationConfig(Quantization kind, const std::vector<std::string>& skipped, DType dtype) {
  if (kind == Quantization::kFp8) return CompressedTensorsConfig(skipped);
  const bool nf4 = kind == Quantization::kNf4;
  return {{"_load_in_4bit", nf4},
          {"_load_in_8bit", !nf4},
          {"bnb_4bit_compute_dtype", TorchName(dtype)},
          {"bnb_4bit_quant_storage", "uint8"},
          {"bnb_4bit_quant_type", "nf4"},
          {"bnb_4bit_use_double_quant", nf4},
          {"llm_int8_enable_fp32_cpu_offload", false},
          {"llm_int8_has_fp16_weight", false},
          {"llm_int8_skip_modules", skipped},
          {"llm_int8_threshold", 0.0},
          {"load_in_4bit", nf4},
          {"load_in_8bit", !nf4},
          {"quant_method", "bitsandbytes"}};
}

namespace {

/// Returns whether a scheme of compressed-tensors says that weights are E4M3 with a scale for a row or a matrix.
bool IsFp8(const Json& scheme) {
  const Json* weights = JsonFind(scheme, "weights");
  if (weights == nullptr || !weights->is_object()) return false;
  const Json* bits = JsonFind(*weights, "num_bits");
  const Json* dynamic = JsonFind(*weights, "dynamic");
  const std::string strategy = JsonString(*weights, "strategy").value_or("");
  return bits != nullptr && *bits == 8 && JsonString(*weights, "type").value_or("") == "float" &&
         (strategy == "channel" || strategy == "tensor") && (dynamic == nullptr || *dynamic == false);
}

/// Returns whether all weights that compressed-tensors has quantized are E4M3.
bool AreFp8(const Json& config) {
  const Json* groups = JsonFind(config, "config_groups");
  return groups != nullptr && groups->is_object() && !groups->empty() && std::ranges::all_of(*groups, IsFp8);
}

}  // namespace

Result<std::optional<Quantization>> StoredQuantization(const Json& config, std::string_view what) {
  const Json* found = JsonFind(config, "quantization_config");
  if (found == nullptr || found->is_null()) return std::optional<Quantization>();
  const auto flag = [&](std::string_view key) {
    const Json* value = JsonFind(*found, key);
    return value != nullptr && value->is_boolean() && value->get<bool>();
  };
  const std::string method = JsonString(*found, "quant_method").value_or("unknown");
  // The first releases of bitsandbytes' configuration name no method.
  const bool is_ours = method == "bitsandbytes" || flag("load_in_4bit") || flag("load_in_8bit");
  if (is_ours && flag("load_in_8bit")) return std::optional(Quantization::kInt8);
  const std::string type = JsonString(*found, "bnb_4bit_quant_type").value_or("fp4");
  if (is_ours && flag("load_in_4bit") && type == "nf4") return std::optional(Quantization::kNf4);
  if (method == "fbgemm_fp8" || (method == "compressed-tensors" && AreFp8(*found))) {
    return std::optional(Quantization::kFp8);
  }
  return Fail(
      Code::kUnsupported,
      "{}: the weights are quantized by {}{}; what is read are bitsandbytes' nf4 and int8, and fp8 with a scale for "
      "each row or matrix by compressed-tensors or FBGEMM",
      what, method, is_ours ? " as " + type : "");
}

std::optional<engine::Quantization> QuantizedWhileTraining(const Manifest& adapter) {
  const Json* train = JsonFind(adapter.meta, "train");
  if (train == nullptr) return std::nullopt;
  return engine::ParseQuantization(JsonString(*train, "base_quantization").value_or(""));
}

}  // namespace millrace::checkpoint
