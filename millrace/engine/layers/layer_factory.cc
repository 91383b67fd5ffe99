#include "millrace/engine/layers/layer_factory.h"

#include <fmt/format.h>

#include <cmath>

#include "millrace/base/hash/name_hash.h"
#include "millrace/engine/errors.h"

namespace millrace::engine {

using Init = ParameterSpec::Init;

namespace {

/// A new norm multiplies with 1.
Init InitOf(double offset) { return offset == 0 ? Init::kOnes : Init::kZeros; }

}  // namespace

TensorSlice LayerFactory::SliceOf(std::size_t dim, std::int64_t begin, std::int64_t extent, int repeats) const {
  const auto [first, count] = ranks_.ShareOf(extent, repeats);
  return {.dim = dim, .begin = begin + first, .extent = count};
}

std::vector<LayerFactory::OutputSlice> LayerFactory::SlicesOf(const std::vector<LinearSpec::Output>& outputs,
                                                              bool divided) const {
  std::vector<OutputSlice> slices;
  for (std::size_t first = 0, last = 0; first < outputs.size(); first = last) {
    const std::string& name = outputs[first].name;
    std::int64_t rows = 0;
    for (last = first; last < outputs.size() && outputs[last].name == name; ++last) rows += outputs[last].features;
    if (!divided) {
      slices.push_back({name, rows, {}});
      continue;
    }
    // Each output is divided by itself: a rank has some of the queries, of the keys and of the values.
    std::int64_t begin = 0;
    for (std::size_t i = first; i < last; begin += outputs[i++].features) {
      const std::int64_t heads = outputs[i].heads;
      const int repeats = heads > 0 && heads < ranks_.size() ? ranks_.size() / static_cast<int>(heads) : 1;
      slices.push_back({name, rows, SliceOf(0, begin, outputs[i].features, repeats), repeats});
    }
  }
  return slices;
}

Linear LayerFactory::MakeLinear(const LinearSpec& spec) {
  const LinearDivision division = ranks_.size() > 1 ? spec.division : LinearDivision::kNone;
  const std::vector<OutputSlice> slices = SlicesOf(spec.outputs, division == LinearDivision::kColumns);
  const std::shared_ptr<const QuantizedRows> codes = FindQuantized(spec, division, slices);
  const std::size_t first_weight = buffer_.specs().size();
  for (const OutputSlice& slice : slices) {
    if (codes) break;
    buffer_.Declare(
        {.name = slice.name + ".weight",
         .shape = {slice.rows, spec.in_features},
         .slice = division == LinearDivision::kRows ? SliceOf(1, 0, spec.in_features) : slice.slice,
         .repeats = slice.repeats,
         .stddev = spec.stddev > 0 ? spec.stddev : stddev_,
         .joins_previous = &slice != slices.data(),
         .transposed = spec.transposed,
         .partial_gradient = slice.repeats > 1 || (division == LinearDivision::kNone && sees_some_tokens())});
  }
  const WeightHandle weights = codes ? WeightHandle() : buffer_.Use(first_weight, slices.size());
  const std::size_t number = Note(spec, weights, codes);
  if (!spec.bias) return {number, weights, {}, division, ranks_, MakeAdapters(spec, division, slices), codes};
  const std::size_t first_bias = buffer_.specs().size();
  for (const OutputSlice& slice : slices) {
    buffer_.Declare(
        {.name = slice.name + ".bias",
         .shape = {slice.rows},
         .slice = slice.slice,
         .repeats = slice.repeats,
         .init = Init::kZeros,
         .joins_previous = &slice != slices.data(),
         .partial_gradient = slice.repeats > 1 || (division != LinearDivision::kColumns && sees_some_tokens())});
  }
  const WeightHandle biases = buffer_.Use(first_bias, slices.size());
  return {number, weights, biases, division, ranks_, MakeAdapters(spec, division, slices), codes};
}

std::size_t LayerFactory::Note(const LinearSpec& spec, WeightHandle weight,
                               std::shared_ptr<const QuantizedRows> codes) {
  LinearLayer layer{.in_features = spec.in_features, .predicts = spec.predicts, .weight = weight};
  layer.codes = std::move(codes);
  std::int64_t output = 0;
  for (const LinearSpec::Output& part : spec.outputs) {
    if (layer.modules.empty() || layer.modules.back().name != part.name)
      layer.modules.push_back({part.name, output, 0});
    layer.modules.back().outputs += part.features;
    output += part.features;
  }
  linear_layers_.push_back(std::move(layer));
  return linear_layers_.size() - 1;
}

std::shared_ptr<const QuantizedRows> LayerFactory::FindQuantized(const LinearSpec& spec, LinearDivision division,
                                                                 const std::vector<OutputSlice>& slices) const {
  if (quantized_ == nullptr) return nullptr;
  auto rows = std::make_shared<QuantizedRows>();
  std::size_t found = 0;
  for (const OutputSlice& slice : slices) {
    const std::string name = slice.name + ".weight";
    const auto at = quantized_->find(name);
    if (at == quantized_->end()) continue;
    ++found;
    const QuantizedMatrix& matrix = *at->second;
    if (spec.predicts) {
      throw ErrorException(Error(Code::kUnsupported, fmt::format("{} is quantized, and makes the model's predictions; "
                                                                 "such layers compute with at least 16 bits",
                                                                 name)));
    }
    if (matrix.rows() != slice.rows || matrix.columns() != spec.in_features) {
      throw ErrorException(
          Error(Code::kCorrupt, fmt::format("{}: the quantized matrix is [{}, {}], the model's sizes say [{}, {}]",
                                            name, matrix.rows(), matrix.columns(), slice.rows, spec.in_features)));
    }
    MatrixBox box{.rows = slice.rows, .columns = spec.in_features};
    if (!slice.slice.whole()) box.row = slice.slice.begin, box.rows = slice.slice.extent;
    if (division == LinearDivision::kRows) {
      const TensorSlice inputs = SliceOf(1, 0, spec.in_features);
      box.column = inputs.begin;
      box.columns = inputs.extent;
    }
    rows->Append(at->second, box);
  }
  if (found == 0) return nullptr;
  if (found < slices.size()) {
    throw ErrorException(Error(Code::kUnsupported, fmt::format("{}.weight and its neighbours are one product; quantize "
                                                               "all of them or none",
                                                               slices.front().name)));
  }
  return rows;
}

bool LayerFactory::HasAdapter(const std::string& module, const LinearSpec& spec) const {
  const std::vector<std::string>& targets = lora_->targets;
  if (targets == std::vector<std::string>{"all-linear"}) return !spec.predicts;
  const bool named = std::ranges::any_of(targets, [&](const std::string& t) { return TargetMatches(t, module); });
  // Ranks divide heads that predict tokens, and no others.
  if (named && spec.predicts && spec.division != LinearDivision::kColumns) {
    throw ErrorException(Error(Code::kUnsupported, fmt::format("lora.targets: {} makes the model's scores, and is "
                                                               "trained whole; leave it out",
                                                               module)));
  }
  if (named && spec.predicts && lora_->dora) {
    throw ErrorException(Error(Code::kUnsupported, fmt::format("lora.dora: {} predicts tokens; the magnitudes of such "
                                                               "layers are not implemented, so leave it out of "
                                                               "lora.targets",
                                                               module)));
  }
  return named;
}

WeightHandle LayerFactory::DeclareDown(const std::vector<std::string>& modules, std::int64_t in_features,
                                       const TensorSlice& inputs, bool partial_gradient) {
  const std::size_t first = buffer_.specs().size();
  for (const std::string& name : modules) {
    buffer_.Declare({.name = name + std::string(kLoraDown),
                     .shape = {lora_->rank, in_features},
                     .slice = inputs,
                     .init = Init::kUniform,
                     // kaiming_uniform_ with a = sqrt(5), as PEFT: between ±1/sqrt(in)
                     .stddev = 1 / std::sqrt(3 * static_cast<double>(in_features)),
                     .joins_previous = &name != modules.data(),
                     .partial_gradient = partial_gradient});
  }
  return buffer_.Use(first, modules.size());
}

WeightHandle LayerFactory::DeclareMagnitudes(const std::string& module, std::size_t first_up, std::size_t count) {
  const std::size_t first = buffer_.specs().size();
  for (std::size_t i = 0; i < count; ++i) {
    const ParameterSpec of_up = buffer_.specs()[first_up + i];
    buffer_.Declare({.name = module + std::string(kLoraMagnitude),
                     .shape = {of_up.shape[0]},
                     .slice = of_up.slice,
                     .repeats = of_up.repeats,
                     .init = Init::kOnes,  // until InitializeMagnitudes()
                     .joins_previous = of_up.joins_previous,
                     .partial_gradient = of_up.partial_gradient});
  }
  return buffer_.Use(first, count);
}

LowRankAdapters LayerFactory::MakeAdapters(const LinearSpec& spec, LinearDivision division,
                                           const std::vector<OutputSlice>& slices) {
  if (!lora_) return {};
  LowRankAdapters adapters{.scale = lora_->scale(),
                           .dropout = lora_->dropout,
                           .sees_some_tokens = division == LinearDivision::kNone && sees_some_tokens()};
  std::vector<std::string> names;  // of the modules with an adapter
  for (const OutputSlice& slice : slices) {
    const bool seen = !names.empty() && names.back() == slice.name;
    if (!seen && HasAdapter(slice.name, spec)) names.push_back(slice.name);
  }
  if (names.empty()) return {};
  const std::int64_t rank = lora_->rank;
  const TensorSlice inputs = division == LinearDivision::kRows ? SliceOf(1, 0, spec.in_features) : TensorSlice{};
  adapters.first_input = inputs.begin;
  adapters.down = DeclareDown(names, spec.in_features, inputs,
                              // Each rank sees the gradient of its own outputs, or tokens.
                              division == LinearDivision::kColumns || adapters.sees_some_tokens);
  std::int64_t output = 0;
  std::size_t module = 0;
  for (std::size_t i = 0; i < slices.size();) {
    const std::string& name = slices[i].name;
    const bool adapted = module < names.size() && names[module] == name;
    const std::int64_t first_output = output;
    const std::size_t first_up = buffer_.specs().size();
    std::size_t count = 0;
    for (; i < slices.size() && slices[i].name == name; output += RowsOf(slices[i++])) {
      if (!adapted) continue;
      const OutputSlice& slice = slices[i];
      buffer_.Declare(
          {.name = name + std::string(kLoraUp),
           .shape = {slice.rows, rank},
           .slice = slice.slice,
           .repeats = slice.repeats,
           .init = Init::kZeros,
           .joins_previous = count > 0,
           // Each rank sees what its own inputs, tokens, or the queries of a repeated head make of it.
           .partial_gradient = slice.repeats > 1 || division == LinearDivision::kRows || adapters.sees_some_tokens});
      ++count;
    }
    if (!adapted) continue;
    ++module;
    const WeightHandle up = buffer_.Use(first_up, count);
    const WeightHandle magnitude = lora_->dora ? DeclareMagnitudes(name, first_up, count) : WeightHandle();
    adapters.modules.push_back({first_output, up, HashName(0, name), magnitude});
  }
  return adapters;
}

std::size_t LayerFactory::BeginPart() {
  buffer_.BeginGroup();
  whole_tokens_ = false;
  return buffer_.groups().size() - 1;
}

std::size_t LayerFactory::DeclareTokens(const TokenTable& table) {
  ParameterSpec spec{.name = table.name, .shape = {table.rows, table.columns}, .stddev = stddev_};
  if (ranks_.size() > 1) spec.slice = SliceOf(0, 0, table.rows);
  spec.shared_by_stages = table.tied && !both_ends_;
  return buffer_.Declare(std::move(spec));
}

Embedding LayerFactory::MakeTokenEmbedding(const TokenTable& table) {
  const std::size_t parameter = DeclareTokens(table);
  return {buffer_.Use(parameter), table.rows, /*divided=*/true, ranks_};
}

Embedding LayerFactory::MakeEmbedding(std::string name, std::int64_t rows, std::int64_t columns) {
  const std::size_t parameter = buffer_.Declare(
      {.name = std::move(name), .shape = {rows, columns}, .stddev = stddev_, .partial_gradient = sees_some_tokens()});
  return {buffer_.Use(parameter), rows, /*divided=*/false, ranks_};
}

Linear LayerFactory::MakeTiedHead(const TokenTable& table, const std::string& bias, const std::string& module) {
  const std::size_t parameter = both_ends_ ? buffer_.Find(table.name) : DeclareTokens(table);
  const WeightHandle weight = buffer_.Use(parameter);
  WeightHandle biases;
  if (!bias.empty()) {
    ParameterSpec spec{.name = bias, .shape = {table.rows}, .init = Init::kZeros};
    if (ranks_.size() > 1) spec.slice = SliceOf(0, 0, table.rows);
    biases = Declare(std::move(spec));
  }
  const LinearDivision division = ranks_.size() > 1 ? LinearDivision::kColumns : LinearDivision::kNone;
  const LinearSpec spec{.in_features = table.columns,
                        .outputs = {{module, table.rows}},
                        .division = LinearDivision::kColumns,
                        .predicts = true};
  const std::size_t number = Note(spec, weight, {});
  if (module.empty()) return {number, weight, biases, division, ranks_};
  return {number,   weight, biases,
          division, ranks_, MakeAdapters(spec, division, SlicesOf(spec.outputs, ranks_.size() > 1))};
}

Norm LayerFactory::MakeRmsNorm(const std::string& name, std::int64_t columns, double eps, double offset) {
  return {Declare({.name = name + ".weight",
                   .shape = {columns},
                   .init = InitOf(offset),
                   .partial_gradient = sees_some_tokens()}),
          {},
          {.eps = eps, .offset = offset}};
}

Norm LayerFactory::MakeLayerNorm(const std::string& name, std::int64_t columns, double eps) {
  const bool partial = sees_some_tokens();
  const WeightHandle weight =
      Declare({.name = name + ".weight", .shape = {columns}, .init = Init::kOnes, .partial_gradient = partial});
  const WeightHandle bias =
      Declare({.name = name + ".bias", .shape = {columns}, .init = Init::kZeros, .partial_gradient = partial});
  return {weight, bias, {.eps = eps}};
}

Norm LayerFactory::MakeHeadNorm(const std::string& name, std::int64_t head_dim, double eps, double offset) {
  // Each rank sees its own heads, so its gradient is a part of the whole.
  return {Declare({.name = name + ".weight",
                   .shape = {head_dim},
                   .init = InitOf(offset),
                   .partial_gradient = ranks_.size() > 1}),
          {},
          {.eps = eps, .offset = offset}};
}

AllHeadsNorm LayerFactory::MakeAllHeadsNorm(const std::string& name, std::int64_t columns, std::int64_t heads,
                                            double eps) {
  ParameterSpec spec{.name = name + ".weight", .shape = {columns}, .init = Init::kOnes};
  int repeats = 1;
  if (ranks_.size() > 1) {
    repeats = heads < ranks_.size() ? ranks_.size() / static_cast<int>(heads) : 1;
    spec.slice = SliceOf(0, 0, columns, repeats);
    spec.repeats = repeats;
    spec.partial_gradient = repeats > 1;
  }
  return {Declare(std::move(spec)), {.columns = columns, .repeats = repeats, .eps = eps}, ranks_};
}

}  // namespace millrace::engine
