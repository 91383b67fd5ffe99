// Finds the tensors of an adapter that are whole weights of the model itself.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/engine/config/lora_options.h"
#include "millrace/engine/config/model_config.h"

namespace millrace::engine {

/// Returns the parameters of the model that an adapter has whole (PEFT's modules_to_save), and checks that each of its
/// tensors has a place in the model. `tensors`: their names, without kPeftPrefix. `what` names the adapter in errors.
/// Errors: kUnsupported, with the tensor's name, if it adapts no layer and is no embedding, norm or head of the model,
/// or if it is an embedding whose weights are those of the head.
Result<std::vector<std::string>> FindWholeWeights(std::span<const std::string> tensors, const ModelConfig& config,
                                                  const LoraOptions& options, std::string_view what);

/// Returns the parameter that PEFT writes beside the adapter of an embedding or a head ("lm_head.base_layer.weight" is
/// "lm_head.weight", or the embedding's if the head is tied). Empty if the tensor is none.
std::string BaseLayerWeight(std::string_view tensor, const ModelConfig& config);

}  // namespace millrace::engine
