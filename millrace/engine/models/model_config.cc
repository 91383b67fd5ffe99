#include "millrace/engine/models/model_config.h"

#include "millrace/engine/layers/layer_factory.h"
#include "millrace/engine/models/model.h"

namespace millrace::engine {
namespace {

std::int64_t Elements(const ParameterSpec& spec) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : spec.shape) elements *= extent;
  return elements;
}

/// Calls `each` with the specs of a model's parameters. Nothing is allocated.
template <class Each>
void ForEachSpec(const ModelConfig& config, Each&& each) {
  ParameterBuffer buffer;
  LayerFactory make(buffer, config.initializer_range());
  const auto unowned = std::shared_ptr<const ModelConfig>(std::shared_ptr<void>(), &config);
  config.Build(unowned, make);
  for (const ParameterSpec& spec : buffer.specs()) each(spec);
}

}  // namespace

std::int64_t ModelConfig::ParameterCount() const {
  std::int64_t count = 0;
  ForEachSpec(*this, [&](const ParameterSpec& spec) { count += Elements(spec); });
  return count;
}

double ModelConfig::FlopsPerToken(double length) const {
  std::int64_t matmul = 0;
  ForEachSpec(*this, [&](const ParameterSpec& spec) { matmul += spec.multiplies ? Elements(spec) : 0; });
  const ModelSizes size = sizes();
  return 6 * static_cast<double>(matmul) +
         12 * static_cast<double>(size.num_layers * size.num_heads * size.head_dim) * length;
}

}  // namespace millrace::engine
