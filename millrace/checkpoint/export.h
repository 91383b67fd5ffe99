// From a checkpoint to a folder that Hugging Face's libraries load.
#pragma once

#include <cstdint>

#include "millrace/checkpoint/checkpoint.h"

namespace millrace::checkpoint {

struct Exported {
  std::uint64_t tensors = 0, bytes = 0;  ///< of model.safetensors
};

/// Writes `folder`/model.safetensors with the tensors of kModelGroup, the group's name dropped, and
/// `folder`/config.json with meta[kMetaModelConfig]; each replaces what is there, atomically. Memory in flight is
/// reserved in `budget`. Every byte is verified on its way. Fails with kNotFound when the checkpoint lacks either.
/// Blocks.
Result<Exported> ExportHuggingFace(Reader& reader, const object::Location& folder, MemoryBudget& budget,
                                   object::Call call = {}, const Progress& progress = {});

}  // namespace millrace::checkpoint
