#include "millrace/engine/models/model_config.h"

#include <numeric>

#include "millrace/engine/layers/layer_factory.h"
#include "millrace/engine/models/model.h"

namespace millrace::engine {
namespace {

std::int64_t Elements(const ParameterSpec& spec) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : spec.shape) elements *= extent;
  return elements;
}

}  // namespace

ParameterBuffer& ModelConfig::Declared(ParameterBuffer& buffer) const {
  LayerFactory make(buffer, initializer_range());
  const auto unowned = std::shared_ptr<const ModelConfig>(std::shared_ptr<void>(), this);
  Build(unowned)->MakeLayers({{.first = 0, .last = sizes().num_layers}}, make);
  return buffer;
}

std::int64_t ModelConfig::ParameterCount() const {
  ParameterBuffer buffer;
  std::int64_t count = 0;
  for (const ParameterSpec& spec : Declared(buffer).specs()) count += Elements(spec);
  return count;
}

std::vector<std::int64_t> ModelConfig::MultipliedParameters() const {
  ParameterBuffer buffer;
  Declared(buffer);
  const auto& groups = buffer.groups();
  std::vector<std::int64_t> counts(groups.size());
  for (std::size_t i = 0, group = 0; i < buffer.specs().size(); ++i) {
    while (buffer.parameters()[i].begin >= groups[group].end) ++group;
    if (buffer.specs()[i].multiplies) counts[group] += Elements(buffer.specs()[i]);
  }
  counts.back() += std::exchange(counts.front(), 0);  // of the embedding only a tied table multiplies, at the head
  return counts;
}

std::vector<std::string> ModelConfig::TransposedWeights() const {
  ParameterBuffer buffer;
  std::vector<std::string> names;
  for (const ParameterSpec& spec : Declared(buffer).specs()) {
    const bool is_new = names.empty() || names.back() != spec.name;  // queries, keys and values are slices of one
    if (spec.transposed && is_new) names.push_back(spec.name);
  }
  return names;
}

double ModelConfig::FlopsPerToken(double length) const {
  const std::vector<std::int64_t> parts = MultipliedParameters();
  const std::int64_t matmul = std::reduce(parts.begin(), parts.end());
  const ModelSizes size = sizes();
  return 6 * static_cast<double>(matmul) +
         12 * static_cast<double>(size.num_layers * size.num_heads * size.head_dim) * length;
}

}  // namespace millrace::engine
