// Makes the model that a configuration describes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/engine/models/model.h"

namespace millrace::engine {

/// Makes a model with random weights, as the family initialises them, unless `share` says that they are read. The
/// weights depend on `seed` only, so they are the same on every machine. Gradients are not enabled.
/// With `share`, the model has this rank's stages, and its slices of their parameters. Every rank makes its own.
/// Errors: those of ModelConfig::Validate, CheckDivision and ParameterBuffer::Declare; kUnsupported if `dtype` is
/// neither kFloat nor kBFloat16, nor kHalf on a GPU.
Result<std::unique_ptr<Model>> MakeModel(std::shared_ptr<const ModelConfig> config, at::ScalarType dtype,
                                         at::Device device, std::uint64_t seed, ModelShare share = {});

/// Returns the names of all weights that Hugging Face's files hold transposed, of every stage.
/// REQUIRES: the configuration is valid.
std::vector<std::string> TransposedWeights(const ModelConfig& config);

/// Checks that `ranks` tensor-parallel ranks can divide the heads and the MLP between them.
/// Errors: kInvalidArgument, with the arithmetic.
Status CheckDivision(const ModelConfig& config, int ranks);

}  // namespace millrace::engine
