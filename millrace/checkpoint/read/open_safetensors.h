// Hugging Face folders behind the interface of checkpoints, so that model weights and checkpoints load alike.
#pragma once

#include <memory>
#include <string_view>

#include "millrace/base/result.h"
#include "millrace/checkpoint/read/store_reader.h"
#include "millrace/object/connection.h"

namespace millrace::checkpoint {

/// Opens a folder's *.safetensors files, or one such file. Tensors are named kModelGroup + their name
/// ("model/lm_head.weight"). If the folder has a config.json, meta[kMetaModelConfig] holds its content. Reads
/// model.safetensors; without it the shards that model.safetensors.index.json names, as transformers does; without both
/// every *.safetensors of the folder. These files have no checksums; sizes and offsets are checked. Blocks.
Result<std::unique_ptr<StoreReader>> OpenSafetensors(object::Connection& connection, std::string_view url,
                                                     object::Call call = {});

}  // namespace millrace::checkpoint
