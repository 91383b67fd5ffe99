#include "millrace/engine/families/llama/llama.h"

namespace millrace::engine {

std::unique_ptr<Model> BuildGemma(std::shared_ptr<const ModelConfig> config) { return BuildLlama(std::move(config)); }

}  // namespace millrace::engine
