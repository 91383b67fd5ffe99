// Loading an adapter beside a model, which can have many of them at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "millrace/base/result.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/engine/config/lora_options.h"
#include "millrace/engine/layers/adapted_linear.h"
#include "millrace/engine/models/model.h"
#include "millrace/object/store.h"

namespace millrace::engine {

/// Reads an adapter of `model` from a run's checkpoint or a PEFT folder, in the model's type and on its device. Calls
/// `reserve` once, with the bytes that the adapter takes, before it reads any weight; fails as `reserve` does. With
/// magnitudes, it reads all weights of the model that the adapter changes. Only reads from the model: other threads may
/// use it meanwhile. Blocks.
/// Errors: kInvalidArgument if a target names no linear layer of the model; kNotFound if a weight of the adapter is
/// missing; kCorrupt if one has another shape, or elements that are not finite; kUnsupported if the checkpoint has
/// weights beside the adapter's; those of Reader::ReadMany.
Result<std::shared_ptr<const AdapterWeights>> ReadAdapterWeights(
    checkpoint::Reader& reader, const Model& model, const LoraOptions& options,
    const std::function<Status(std::uint64_t bytes)>& reserve, const object::Call& call = {});

}  // namespace millrace::engine
