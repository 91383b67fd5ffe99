#include "millrace/engine/layers/layer_factory.h"

namespace millrace::engine {

using Init = ParameterSpec::Init;

TensorSlice LayerFactory::SliceOf(std::size_t dim, std::int64_t begin, std::int64_t extent) const {
  const auto [first, count] = ranks_.ShareOf(extent);
  return {.dim = dim, .begin = begin + first, .extent = count};
}

Linear LayerFactory::MakeLinear(const LinearSpec& spec) {
  const auto features_of = [&](const std::string& name) {
    std::int64_t features = 0;
    for (const LinearSpec::Output& output : spec.outputs) features += output.name == name ? output.features : 0;
    return features;
  };
  const bool divided = ranks_.size() > 1, by_columns = divided && spec.division == LinearDivision::kColumns;
  const bool by_rows = divided && spec.division == LinearDivision::kRows;
  /// Declares the weights or biases of all outputs. Returns the number of the first one, and how many there are.
  const auto declare = [&](bool bias) {
    const std::size_t first = buffer_.specs().size();
    std::int64_t begin = 0;
    for (const LinearSpec::Output& output : spec.outputs) {
      const bool continues = &output != spec.outputs.data() && (&output - 1)->name == output.name;
      if (!continues) begin = 0;
      const std::int64_t rows = features_of(output.name);
      const bool one_parameter = !by_columns && rows != output.features;
      if (!(one_parameter && continues)) {
        ParameterSpec parameter{.name = output.name + (bias ? ".bias" : ".weight"), .shape = {rows}};
        if (by_columns) parameter.slice = SliceOf(0, begin, output.features);
        if (bias) {
          parameter.init = Init::kZeros;
          parameter.partial_gradient = by_rows && ranks_.sequence_parallel;
        } else {
          parameter.shape.push_back(spec.in_features);
          if (by_rows) parameter.slice = SliceOf(1, 0, spec.in_features);
          parameter.stddev = spec.stddev > 0 ? spec.stddev : stddev_;
          parameter.transposed = spec.transposed;
          parameter.multiplies = true;
          parameter.partial_gradient = spec.division == LinearDivision::kNone && ranks_.divides_tokens();
        }
        parameter.joins_previous = buffer_.specs().size() != first;
        buffer_.Declare(std::move(parameter));
      }
      begin += output.features;
    }
    return buffer_.Use(first, buffer_.specs().size() - first);
  };
  const WeightHandle weights = declare(/*bias=*/false);
  const WeightHandle biases = spec.bias ? declare(/*bias=*/true) : WeightHandle();
  return {weights, biases, divided ? spec.division : LinearDivision::kNone, ranks_};
}

Embedding LayerFactory::MakeTokenEmbedding(std::string name, std::int64_t rows, std::int64_t columns) {
  ParameterSpec spec{.name = std::move(name), .shape = {rows, columns}, .stddev = stddev_};
  if (ranks_.size() > 1) spec.slice = SliceOf(0, 0, rows);
  const std::size_t parameter = buffer_.Declare(std::move(spec));
  return {parameter, buffer_.Use(parameter), rows, /*divided=*/true, ranks_};
}

Embedding LayerFactory::MakeEmbedding(std::string name, std::int64_t rows, std::int64_t columns) {
  const std::size_t parameter = buffer_.Declare({.name = std::move(name),
                                                 .shape = {rows, columns},
                                                 .stddev = stddev_,
                                                 .partial_gradient = ranks_.divides_tokens()});
  return {parameter, buffer_.Use(parameter), rows, /*divided=*/false, ranks_};
}

Linear LayerFactory::MakeTiedHead(const Embedding& embedding, const std::string& bias) {
  buffer_.DeclareMatrix(embedding.parameter());
  const WeightHandle weight = buffer_.Use(embedding.parameter());
  WeightHandle biases;
  if (!bias.empty()) {
    ParameterSpec spec{.name = bias, .shape = {embedding.rows()}, .init = Init::kZeros};
    if (ranks_.size() > 1) spec.slice = SliceOf(0, 0, embedding.rows());
    biases = Declare(std::move(spec));
  }
  return {weight, biases, ranks_.size() > 1 ? LinearDivision::kColumns : LinearDivision::kNone, ranks_};
}

Norm LayerFactory::MakeRmsNorm(const std::string& name, std::int64_t columns, double eps) {
  return {Declare({.name = name + ".weight",
                   .shape = {columns},
                   .init = Init::kOnes,
                   .partial_gradient = ranks_.divides_tokens()}),
          {},
          eps};
}

Norm LayerFactory::MakeLayerNorm(const std::string& name, std::int64_t columns, double eps) {
  const bool partial = ranks_.divides_tokens();
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
