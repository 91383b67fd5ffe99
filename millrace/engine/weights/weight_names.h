// The names that weights have in files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/engine/config/lora_options.h"
#include "millrace/engine/config/model_config.h"

namespace millrace::engine {

/// Returns the name under which a checkpoint or a folder has a parameter of a model; nothing if it has none. Files of
/// the base model alone, such as GPT-2's on the hub, lack the first part ("transformer.wte.weight" is "wte.weight").
std::optional<std::string> FindModelWeight(const checkpoint::Manifest& manifest, const std::string& name);

/// Returns the name under which an adapter's checkpoint or folder has a weight; nothing if it has none.
std::optional<std::string> FindAdapterWeight(const checkpoint::Manifest& manifest, const std::string& name);

/// Returns the names of an adapter's tensors, without kPeftPrefix, as FindAdapterWeight() takes them.
std::vector<std::string> AdapterTensors(const checkpoint::Manifest& manifest);

/// Sets options.whole to what the adapter says. Errors: those of FindWholeWeights().
Status FindWhole(const checkpoint::Reader& adapter, const ModelConfig& config, LoraOptions& options);

}  // namespace millrace::engine
