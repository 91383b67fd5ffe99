#include "millrace/engine/config/model_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>

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
    case Kind::kAllHeadsNorm:
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

/// Returns the elements of the matrices A [rank, in] and B [outputs, rank] of a layer's adapters, and of magnitudes.
std::int64_t AdapterElements(const Layer& layer) {
  std::int64_t elements = 0;
  for (const AdaptedModule& module : layer.adapters.modules) {
    const auto first = layer.outputs.begin() + static_cast<std::ptrdiff_t>(module.first_output);
    const auto out = std::accumulate(first, first + static_cast<std::ptrdiff_t>(module.outputs), std::int64_t{0});
    elements += layer.adapters.rank * (layer.in + out) + (layer.adapters.has_magnitudes ? out : 0);
  }
  return elements;
}

std::int64_t Count(const Layers& part, bool trained_only) {
  std::int64_t count = 0;
  for (const Layer& layer : part) {
    const ElementCount elements = Elements(layer);
    if (layer.trains_weight || !trained_only) count += elements.weights;
    if (layer.trains_bias || !trained_only) count += elements.biases;
    count += AdapterElements(layer);
  }
  return count;
}

/// Returns the sum of `of` over all parts of the model.
template <class Of>
std::int64_t SumOverParts(const ModelShape& model, Of&& of) {
  std::int64_t sum = of(model.embedding) + of(model.head);
  if (model.kind_of_block.empty()) return sum + model.num_layers * of(model.block);
  for (const std::size_t kind : model.kind_of_block) sum += of(model.marked_blocks[kind]);
  return sum;
}

std::string NameIn(std::int64_t block, const std::string& name) { return fmt::format(fmt::runtime(name), block); }

/// Calls `mark` for each layer, with the number of its block; 0 if it is in none. Marks of earlier calls stay.
void MarkLayers(ModelShape& model, const std::function<void(Layer& layer, std::int64_t block)>& mark) {
  const std::vector<Layers> kinds = std::exchange(model.marked_blocks, {});
  const std::vector<std::size_t> kind_of_block = std::exchange(model.kind_of_block, {});
  for (Layer& layer : model.embedding) mark(layer, 0);
  for (Layer& layer : model.head) {
    mark(layer, 0);
    if (layer.tied) layer.trains_weight = model.embedding.front().trains_weight;
  }
  for (std::int64_t i = 0; i < model.num_layers; ++i) {
    Layers layers = kinds.empty() ? model.block : kinds[kind_of_block[static_cast<std::size_t>(i)]];
    for (Layer& layer : layers) mark(layer, i);
    const auto found = std::ranges::find(model.marked_blocks, layers);
    model.kind_of_block.push_back(static_cast<std::size_t>(found - model.marked_blocks.begin()));
    if (found == model.marked_blocks.end()) model.marked_blocks.push_back(std::move(layers));
  }
}

bool Multiplies(const Layer& layer) {
  return layer.kind == Kind::kColumns || layer.kind == Kind::kRows || layer.kind == Kind::kWhole ||
         layer.kind == Kind::kTokenHead;
}

/// Returns the adapters that LoRA's targets give to a linear layer of a block. As engine::LayerFactory::MakeAdapters.
LayerAdapters AdaptersOf(const Layer& layer, const engine::LoraOptions& lora, std::int64_t block) {
  LayerAdapters adapters{.rank = lora.rank, .drops = lora.dropout > 0, .has_magnitudes = lora.dora};
  const bool all = lora.targets == std::vector<std::string>{"all-linear"};
  if (!Multiplies(layer) || (layer.predicts && (all || layer.kind != Kind::kTokenHead))) return {};
  const auto name_of = [&](std::size_t output) -> const std::string& {
    return layer.output_names.empty() ? layer.name : layer.output_names[output];
  };
  for (std::size_t first = 0, last = 0; first < layer.outputs.size(); first = last) {
    while (last < layer.outputs.size() && name_of(last) == name_of(first)) ++last;
    const std::string module = NameIn(block, name_of(first));
    const bool named =
        std::ranges::any_of(lora.targets, [&](const std::string& t) { return engine::TargetMatches(t, module); });
    if (all || named) adapters.modules.push_back({first, last - first});
  }
  return adapters.modules.empty() ? LayerAdapters{} : adapters;
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
  return SumOverParts(*this, [](const Layers& part) { return Count(part, false); });
}

std::int64_t ModelShape::TrainedCount() const {
  return SumOverParts(*this, [](const Layers& part) { return Count(part, true); });
}

bool ModelShape::is_adapted() const {
  return SumOverParts(*this, [](const Layers& part) {
           std::int64_t elements = 0;
           for (const Layer& layer : part) elements += AdapterElements(layer);
           return elements;
         }) > 0;
}

std::vector<std::string> ModelShape::ParameterNames() const {
  std::vector<std::string> names;
  const auto add = [&](const Layer& layer, std::int64_t number) {
    const auto name_of = [&](std::size_t output) {
      return NameIn(number, layer.output_names.empty() ? layer.name : layer.output_names[output]);
    };
    std::vector<std::string> modules;
    for (std::size_t i = 0; i < std::max<std::size_t>(1, layer.output_names.size()); ++i) {
      if (!layer.name.empty() && (modules.empty() || modules.back() != name_of(i))) modules.push_back(name_of(i));
    }
    for (const std::string& module : modules) {
      if (!layer.tied) names.push_back(module + ".weight");
      if (layer.bias) names.push_back(module + ".bias");
    }
    for (const AdaptedModule& adapted : layer.adapters.modules) {
      const std::string module = name_of(adapted.first_output);
      for (const std::string_view part : {engine::kLoraDown, engine::kLoraUp})
        names.push_back(module + std::string(part));
      if (layer.adapters.has_magnitudes) names.push_back(module + std::string(engine::kLoraMagnitude));
    }
  };
  for (const Layer& layer : embedding) add(layer, 0);
  for (std::int64_t i = 0; i < num_layers; ++i) {
    for (const Layer& layer : kind_of_block.empty() ? block : marked_blocks[KindOf(i)]) add(layer, i);
  }
  for (const Layer& layer : head) add(layer, 0);
  return names;
}

void ModelShape::LimitAttention(const std::vector<std::int64_t>& windows) {
  if (std::ranges::all_of(windows, [](std::int64_t window) { return window == 0; })) return;
  MarkLayers(*this, [&](Layer& layer, std::int64_t block) {
    if (layer.kind != Kind::kAttention) return;
    layer.window = block < std::ssize(windows) ? windows[static_cast<std::size_t>(block)] : 0;
  });
}

double ModelShape::AttendedLength(double length) const {
  const auto of = [&](const Layers& part) {
    double sum = 0;
    for (const Layer& layer : part) {
      if (layer.kind == Kind::kAttention) sum += plan::AttendedLength(length, layer.window);
    }
    return sum;
  };
  if (kind_of_block.empty()) return of(block);
  double sum = 0;
  for (const std::size_t kind : kind_of_block) sum += of(marked_blocks[kind]);
  return sum / static_cast<double>(num_layers);
}

void ModelShape::Freeze(const std::vector<std::string>& globs) {
  if (globs.empty()) return;
  MarkLayers(*this, [&](Layer& layer, std::int64_t block) {
    const auto trains = [&](std::string_view suffix) {
      const std::string name = NameIn(block, layer.name) + std::string(suffix);
      return std::ranges::none_of(globs, [&](const std::string& glob) { return GlobMatches(glob, name); });
    };
    layer.trains_weight = trains(".weight");
    layer.trains_bias = trains(".bias");
  });
}

void ModelShape::Adapt(const engine::LoraOptions& lora, double bits) {
  block_bits = bits;
  const bool predicts_tokens =
      std::ranges::any_of(head, [](const Layer& layer) { return layer.kind == Kind::kTokenHead; });
  MarkLayers(*this, [&](Layer& layer, std::int64_t block) {
    const bool trains = layer.predicts && !predicts_tokens;
    const auto is_whole = [&](std::string_view suffix) {
      return std::ranges::find(lora.whole, NameIn(block, layer.name) + std::string(suffix)) != lora.whole.end();
    };
    layer.trains_weight = trains || is_whole(".weight");
    layer.trains_bias = trains || is_whole(".bias");
    layer.adapters = AdaptersOf(layer, lora, block);
  });
}

std::int64_t ModelShape::Multiplied(const std::vector<Layer>& part) const {
  std::int64_t sum = 0;
  for (const Layer& layer : part) sum += Multiplies(layer) ? layer.in * layer.out() : 0;
  return sum;
}

engine::PartSizes ModelShape::Parts(std::int64_t length) const {
  return {.block_elements = Multiplied(block),
          .head_elements = Multiplied(head),
          .query_channels = queries(),
          .attended_length = AttendedLength(static_cast<double>(length)),
          .predicted = predicted,
          .causal = causal};
}

double ModelShape::FlopsPerToken(double length) const {
  const std::int64_t products = SumOverParts(*this, [](const Layers& part) {
    std::int64_t sum = 0;
    for (const Layer& layer : part) {
      if (Multiplies(layer)) sum += (layer.trains_weight ? 6 : 4) * layer.in * layer.out() + 6 * AdapterElements(layer);
    }
    return sum;
  });
  return static_cast<double>(products) + 12 * static_cast<double>(num_layers * queries()) * AttendedLength(length);
}

double ModelShape::FlopsPerProduct(double tokens) const {
  const std::int64_t products = std::ranges::count_if(block, Multiplies);
  return 2 * tokens * static_cast<double>(Multiplied(block)) / static_cast<double>(std::max<std::int64_t>(1, products));
}

double AttendedLength(double length, std::int64_t window) {
  const auto keys = static_cast<double>(window);
  return window > 0 && keys < length ? keys * (2 - keys / length) : length;
}

}  // namespace millrace::plan
