// Llama (Touvron et al. 2023): pre-norm decoder with RMSNorm, rotary positions, grouped-query attention and SwiGLU,
// without biases. Parameter names and numerics follow transformers' LlamaForCausalLM.
#pragma once

#include <memory>

#include "millrace/engine/model.h"

namespace millrace::engine {

/// Returns a model with uninitialised weights.
/// REQUIRES: config.Validate() succeeds; the family is llama.
std::unique_ptr<Model> MakeLlama(const ModelConfig& config, at::ScalarType dtype, at::Device device);

}  // namespace millrace::engine
