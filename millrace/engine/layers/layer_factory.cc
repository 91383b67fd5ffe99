#include "millrace/engine/layers/layer_factory.h"

namespace millrace::engine {

using Init = ParameterSpec::Init;

Linear LayerFactory::MakeLinear(const LinearSpec& spec) {
  const std::size_t weight = buffer_.specs().size(), count = spec.outputs.size();
  for (const LinearSpec::Output& output : spec.outputs) {
    buffer_.Declare({.name = output.name + ".weight",
                     .shape = {output.features, spec.in_features},
                     .stddev = spec.stddev > 0 ? spec.stddev : stddev_,
                     .joins_previous = &output != spec.outputs.data(),
                     .transposed = spec.transposed,
                     .multiplies = true});
  }
  const WeightHandle weights = buffer_.Use(weight, count);
  if (!spec.bias) return {weights, {}};
  const std::size_t bias = buffer_.specs().size();
  for (const LinearSpec::Output& output : spec.outputs) {
    buffer_.Declare({.name = output.name + ".bias",
                     .shape = {output.features},
                     .init = Init::kZeros,
                     .joins_previous = &output != spec.outputs.data()});
  }
  return {weights, buffer_.Use(bias, count)};
}

std::size_t LayerFactory::MakeTable(std::string name, std::int64_t rows, std::int64_t columns) {
  return buffer_.Declare({.name = std::move(name), .shape = {rows, columns}, .stddev = stddev_});
}

WeightHandle LayerFactory::UseAsMatrix(std::size_t parameter) {
  buffer_.DeclareMatrix(parameter);
  return buffer_.Use(parameter);
}

WeightHandle LayerFactory::MakeBias(std::string name, std::int64_t features) {
  return buffer_.Use(buffer_.Declare({.name = std::move(name), .shape = {features}, .init = Init::kZeros}));
}

Norm LayerFactory::MakeRmsNorm(const std::string& name, std::int64_t columns, double eps) {
  const std::size_t weight = buffer_.Declare({.name = name + ".weight", .shape = {columns}, .init = Init::kOnes});
  return {buffer_.Use(weight), {}, eps};
}

Norm LayerFactory::MakeLayerNorm(const std::string& name, std::int64_t columns, double eps) {
  const std::size_t weight = buffer_.Declare({.name = name + ".weight", .shape = {columns}, .init = Init::kOnes});
  const WeightHandle weights = buffer_.Use(weight);
  return {weights, MakeBias(name + ".bias", columns), eps};
}

}  // namespace millrace::engine
