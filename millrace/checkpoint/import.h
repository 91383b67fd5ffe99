// From a folder of Hugging Face's libraries to a checkpoint.
#pragma once

#include <cstdint>
#include <string_view>

#include "millrace/checkpoint/checkpoint.h"

namespace millrace::checkpoint {

/// Commits the shards of `source` (see OpenSafetensors), copied as they are, as the checkpoint of `step` below `url`:
/// the model's weights and config.json. Memory in flight is reserved in `budget`. kAlreadyExists when the step is
/// committed. Blocks.
Result<Manifest> ImportHuggingFace(object::Connection& connection, std::string_view source, std::string_view url,
                                   std::uint64_t step, MemoryBudget& budget, object::Call call = {},
                                   const Progress& progress = {});

}  // namespace millrace::checkpoint
