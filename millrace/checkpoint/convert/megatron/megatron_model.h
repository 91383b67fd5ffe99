// The model that a checkpoint of Megatron describes, and the Hugging Face configuration of the same model. Pure
// functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/torch/pickle.h"

namespace millrace::checkpoint {

/// The families of Hugging Face whose models Megatron's GPTModel can be.
enum class MegatronFamily {
  kLlama,  ///< RMSNorm, SwiGLU and RoPE: llama, mistral, qwen2, qwen3
  kGpt2,   ///< LayerNorm, GELU, learned positions and biases
};

struct MegatronModel {
  MegatronFamily family = MegatronFamily::kLlama;
  std::uint64_t layers = 0, hidden = 0, heads = 0, head_dim = 0, intermediate = 0;
  std::uint64_t groups = 0;      ///< heads of keys and values
  std::uint64_t vocabulary = 0;  ///< rows of the embedding without Megatron's padding
  bool has_padding = false;      ///< whether `vocabulary` counts the padding too, since its size is unknown
  bool tied = false;             ///< whether the output layer is the embedding
  Json config;                   ///< Hugging Face's config.json
};

/// Returns the model of Megatron's arguments, the `args` of its common state.
/// Errors: kUnsupported if no family has such a model; kCorrupt if a size is missing or impossible.
Result<MegatronModel> ModelOfArguments(const Pickle& pickle, const Pickle::Value& arguments);

/// Returns the model of a config.json.
/// Errors: kUnsupported if its model_type is of no family; kInvalidArgument if a member is missing or impossible.
Result<MegatronModel> ModelOfConfig(const Json& config);

}  // namespace millrace::checkpoint
