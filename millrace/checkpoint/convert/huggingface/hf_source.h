// Opens a folder of Hugging Face's libraries or of PEFT as an ImportSource. The weights are safetensors or pickles, in
// one file or in shards. A model's small files are imported with them.
#pragma once

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/tensors/foreign_format.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/object/location.h"

namespace millrace::checkpoint {

/// Opens a model's folder (kHuggingFace) or an adapter's (kPeft). If the key is neither empty nor ends with a slash, it
/// is the key of one *.safetensors file. Then only this file and its config.json are imported. Blocks.
/// Errors: kNotFound without weights; kCorrupt if a shard is missing or files contradict each other.
Result<ImportSource> OpenHuggingFaceFolder(const object::Location& folder, ForeignFormat format, object::Call call);

}  // namespace millrace::checkpoint
