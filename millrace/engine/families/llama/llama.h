// The model of the Llama family and of those that derive its configuration.
#pragma once

#include <memory>

#include "millrace/engine/config/model_config.h"
#include "millrace/engine/models/model.h"

namespace millrace::engine {

/// Returns a model without layers. REQUIRES: `config` is a LlamaConfig, or derives it.
std::unique_ptr<Model> BuildLlama(std::shared_ptr<const ModelConfig> config);

}  // namespace millrace::engine
