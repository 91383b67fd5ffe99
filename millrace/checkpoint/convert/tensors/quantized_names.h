// Names, shapes and JSON of quantized weights in a folder of Hugging Face's libraries. bitsandbytes defines those of
// nf4 and int8, and compressed-tensors those of fp8. Pure functions. docs/formats/quantized-weights.md describes the
// bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/engine/quantized/quantization.h"

namespace millrace::checkpoint {

/// The suffixes of a quantized weight's tensors. Those of int8 follow the module's name, the others the weight's.
inline constexpr std::string_view kScalesSuffix = ".absmax", kMapSuffix = ".quant_map",
                                  kScaleScalesSuffix = ".nested_absmax", kScaleMapSuffix = ".nested_quant_map",
                                  kNf4StateSuffix = ".quant_state.bitsandbytes__nf4",
                                  kFp4StateSuffix = ".quant_state.bitsandbytes__fp4", kRowScalesSuffix = ".SCB",
                                  kFormatSuffix = ".weight_format", kFp8ScalesSuffix = "_scale";

/// Returns whether a model's weight is quantized: a matrix of floating-point numbers of at most 32 bits that is part of
/// a block, so its name has a number ("model.layers.0.mlp.up_proj.weight"). Embeddings and heads are not.
bool IsQuantizable(std::string_view name, const TensorMeta& meta);

/// One tensor of a quantized weight.
struct QuantizedPart {
  enum class Kind { kCodes, kScales, kState, kScaleScales, kScaleMap, kMap, kRowScales, kFormat };
  std::string weight;  ///< the name of the whole: "….weight"
  Kind kind;
  SafetensorsEntry entry;
};

/// Returns the parts of a weight [out, in] in the order in which they become known: the codes first.
/// `meta`: of the weight; a matrix.
std::vector<QuantizedPart> PartsOf(const std::string& weight, const TensorMeta& meta, engine::Quantization kind);

/// The JSON of the tensor `…quant_state…`.
struct QuantState {
  DType dtype = DType::kF32;  ///< of the weight before
  std::vector<std::int64_t> shape;
  int block = 64;
  int scale_block = 256;
  std::optional<float> scale_offset = {};  ///< with double quantization
};
/// Returns the JSON, filled up with spaces to `bytes`. Readers skip them.
/// REQUIRES: `bytes` is at least kStateBytes.
std::string FormatState(const QuantState& state, std::size_t bytes);
/// Enough for the JSON of any matrix.
inline constexpr std::size_t kStateBytes = 256;
/// Errors: kCorrupt, with `name`.
Result<QuantState> ParseState(std::string_view json, std::string_view name);

/// Returns the member `quantization_config` of a config.json, by which transformers chooses bitsandbytes or
/// compressed-tensors. For fp8, it has vLLM cast inputs, too, with a scale for each token. `skipped`:
/// the modules whose matrices are not quantized. `dtype`: of those.
Json QuantizationConfig(engine::Quantization kind, const std::vector<std::string>& skipped, DType dtype);

/// Returns how a config.json says that the folder's weights are quantized; nothing if it does not.
/// Errors: kUnsupported, with `what`, if they are in another way than these: by bitsandbytes as nf4
/// or int8, or as E4M3 with a scale for a row or a matrix by compressed-tensors or as FBGEMM's.
Result<std::optional<engine::Quantization>> StoredQuantization(const Json& config, std::string_view what);

/// Returns how the model was quantized while a run trained the adapter in this checkpoint. Returns nothing if it was
/// not, or if no run made the checkpoint.
std::optional<engine::Quantization> QuantizedWhileTraining(const Manifest& adapter);

}  // namespace millrace::checkpoint
