#include "millrace/plan/model/model_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include "millrace/base/glob.h"

namespace millrace::plan {
namespace {

using Kind = LayerKind;
using Layers = std::vector<Layer>;

struct ElementCount {
  std::int64_t weights = 0, biases = 0;
};
ElementCount Elements(const Layer& layer) {
  switch (layer.kind) {
    case Kind::kNorm:
      return {layer.in, layer.bias ? layer.in : 0};
    case Kind::kHeadNorm:
      return {layer.in, 0};
    case Kind::kAttention:
    case Kind::kActivation:
    case Kind::kGated:
    case Kind::kJoinRows:
      return {};
    default:
      return {layer.tied ? 0 : layer.out() * layer.in, layer.bias ? layer.out() : 0};
  }
}

std::int64_t Count(const Layers& part, bool trained_only) {
  std::int64_t count = 0;
  for (const Layer& layer : part) {
    const ElementCount elements = Elements(layer);
    if (layer.trains_weight || !trained_only) count += elements.weights;
    if (layer.trains_bias || !trained_only) count += elements.biases;
  }
  return count;
}

/// Returns the layers of a part with their marks. `block`: its number, if it is a block.
Layers Frozen(Layers part, const std::vector<std::string>& globs, std::int64_t block = 0) {
  const auto trains = [&](const Layer& layer, std::string_view suffix) {
    const std::string name = fmt::format(fmt::runtime(layer.name), block) + std::string(suffix);
    return std::ranges::none_of(globs, [&](const std::string& glob) { return GlobMatches(glob, name); });
  };
  for (Layer& layer : part) {
    layer.trains_weight = trains(layer, ".weight");
    layer.trains_bias = trains(layer, ".bias");
  }
  return part;
}

}  // namespace

std::int64_t Layer::out() const { return std::accumulate(outputs.begin(), outputs.end(), std::int64_t{0}); }

bool ModelShape::tied() const {
  for (const Layer& layer : head) {
    if (layer.tied) return true;
  }
  return false;
}

std::int64_t ModelShape::ParameterCount() const {
  return Count(embedding, false) + num_layers * Count(block, false) + Count(head, false);
}

std::int64_t ModelShape::TrainedCount() const {
  std::int64_t count = Count(embedding, true) + Count(head, true);
  if (kind_of_block.empty()) return count + num_layers * Count(block, true);
  for (const std::size_t kind : kind_of_block) count += Count(frozen_blocks[kind], true);
  return count;
}

void ModelShape::Freeze(const std::vector<std::string>& globs) {
  frozen_blocks.clear();
  kind_of_block.clear();
  if (globs.empty()) return;
  embedding = Frozen(std::move(embedding), globs);
  head = Frozen(std::move(head), globs);
  for (Layer& layer : head) {
    if (layer.tied) layer.trains_weight = embedding.front().trains_weight;
  }
  for (std::int64_t i = 0; i < num_layers; ++i) {
    Layers layers = Frozen(block, globs, i);
    const auto found = std::ranges::find(frozen_blocks, layers);
    kind_of_block.push_back(static_cast<std::size_t>(found - frozen_blocks.begin()));
    if (found == frozen_blocks.end()) frozen_blocks.push_back(std::move(layers));
  }
}

std::int64_t ModelShape::Multiplied(const std::vector<Layer>& part) const {
  std::int64_t sum = 0;
  for (const Layer& layer : part) {
    const bool multiplies = layer.kind == Kind::kColumns || layer.kind == Kind::kRows || layer.kind == Kind::kWhole ||
                            layer.kind == Kind::kTokenHead;
    if (multiplies) sum += layer.in * layer.out();
  }
  return sum;
}

engine::PartSizes ModelShape::Parts(std::int64_t length) const {
  return {.block_elements = Multiplied(block),
          .head_elements = Multiplied(head),
          .query_channels = queries(),
          .sequence_length = length,
          .predicted = predicted,
          .causal = causal};
}

double ModelShape::FlopsPerToken(double length) const {
  return 6 * static_cast<double>(num_layers * Multiplied(block) + Multiplied(head)) +
         12 * static_cast<double>(num_layers * queries()) * length;
}

}  // namespace millrace::plan
