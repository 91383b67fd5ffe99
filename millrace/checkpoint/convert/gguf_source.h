// Opens a GGUF file of llama.cpp as an ImportSource.
#pragma once

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"

namespace millrace::checkpoint {

/// `file` is the key of the file. Quantized tensors become F32, others keep their types. The vocabulary
/// becomes tokenizer.model or tokenizer.json. options.config replaces what the metadata say of the model. Blocks.
/// Errors: those of OpenGgufFile.
Result<ImportSource> OpenGgufSource(const object::Location& file, const SourceOptions& options, object::Call call);

}  // namespace millrace::checkpoint
