// Exports a model as a GGUF file of llama.cpp.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/tensors/export_target.h"
#include "millrace/checkpoint/convert/tensors/tensor_stream.h"
#include "millrace/checkpoint/gguf/ggml_type.h"

namespace millrace::checkpoint {

/// Writes the model of the checkpoint to the key target.to. Matrices get `type`; without a type, their own. Vectors,
/// and the positions of GPT-2, are f32. A tokenizer.model or tokenizer.json among `files` or in the checkpoint is
/// written as the vocabulary; a note says why it is not. One put publishes the file. Blocks. Errors: kNotFound if the
/// checkpoint has no model; kUnsupported if it is none of Llama's or GPT-2's, or has a feature that GGUF's metadata of
/// them lack.
Result<ExportResult> ExportGguf(TensorStream& stream, const ExportTarget& target, std::optional<GgmlType> type,
                                const std::map<std::string, std::string>& files);

}  // namespace millrace::checkpoint
