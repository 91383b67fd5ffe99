#include "millrace/plan/model/model_shape.h"

#include <numeric>

namespace millrace::plan {
namespace {

using Kind = LayerKind;
std::int64_t Elements(const Layer& layer) {
  switch (layer.kind) {
    case Kind::kNorm:
      return layer.in * (layer.bias ? 2 : 1);
    case Kind::kHeadNorm:
      return layer.in;
    case Kind::kAttention:
    case Kind::kActivation:
    case Kind::kGated:
    case Kind::kJoinRows:
      return 0;
    default:
      return layer.out() * ((layer.tied ? 0 : layer.in) + (layer.bias ? 1 : 0));
  }
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
  const auto count = [](const Layers& part) {
    return std::accumulate(part.begin(), part.end(), std::int64_t{0},
                           [](std::int64_t sum, const Layer& layer) { return sum + Elements(layer); });
  };
  return count(embedding) + num_layers * count(block) + count(head);
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
