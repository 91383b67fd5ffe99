#include "millrace/engine/layers/layer_factory.h"

namespace millrace::engine {

using Init = ParameterSpec::Init;

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
  const std::size_t first_weight = buffer_.specs().size();
  for (const OutputSlice& slice : slices) {
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
  const WeightHandle weights = buffer_.Use(first_weight, slices.size());
  if (!spec.bias) return {weights, {}, division, ranks_};
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
  return {weights, buffer_.Use(first_bias, slices.size()), division, ranks_};
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

Linear LayerFactory::MakeTiedHead(const TokenTable& table, const std::string& bias) {
  const std::size_t parameter = both_ends_ ? buffer_.Find(table.name) : DeclareTokens(table);
  const WeightHandle weight = buffer_.Use(parameter);
  WeightHandle biases;
  if (!bias.empty()) {
    ParameterSpec spec{.name = bias, .shape = {table.rows}, .init = Init::kZeros};
    if (ranks_.size() > 1) spec.slice = SliceOf(0, 0, table.rows);
    biases = Declare(std::move(spec));
  }
  return {weight, biases, ranks_.size() > 1 ? LinearDivision::kColumns : LinearDivision::kNone, ranks_};
}

Norm LayerFactory::MakeRmsNorm(const std::string& name, std::int64_t columns, double eps) {
  return {
      Declare(
          {.name = name + ".weight", .shape = {columns}, .init = Init::kOnes, .partial_gradient = sees_some_tokens()}),
      {},
      eps};
}

Norm LayerFactory::MakeLayerNorm(const std::string& name, std::int64_t columns, double eps) {
  const bool partial = sees_some_tokens();
  const WeightHandle weight =
      Declare({.name = name + ".weight", .shape = {columns}, .init = Init::kOnes, .partial_gradient = partial});
  const WeightHandle bias =
      Declare({.name = name + ".bias", .shape = {columns}, .init = Init::kZeros, .partial_gradient = partial});
  return {weight, bias, eps};
}

Norm LayerFactory::MakeHeadNorm(const std::string& name, std::int64_t head_dim, double eps) {
  // Each rank sees its own heads, so its gradient is a part of the whole.
  return {
      Declare(
          {.name = name + ".weight", .shape = {head_dim}, .init = Init::kOnes, .partial_gradient = ranks_.size() > 1}),
      {},
      eps};
}

}  // namespace millrace::engine
