// The destination of an export, the counts of what it wrote, and the function that writes each format.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/checkpoint/convert/tensors/tensor_stream.h"
#include "millrace/checkpoint/gguf/ggml_type.h"
#include "millrace/engine/quantized/quantization.h"
#include "millrace/object/location.h"

namespace millrace::checkpoint {

struct ExportTarget {
  object::Location to;       ///< a folder's key is empty or ends with a slash
  MemoryBudget& budget;      ///< for the bytes in flight
  std::uint64_t file_bytes;  ///< ExportOptions::file_bytes
};

struct ExportResult {
  std::uint64_t tensors = 0, files = 0, bytes = 0;  ///< bytes: of all files
  std::vector<std::string> notes = {};              ///< sentences for the user: what was not exported, and why
};

/// Writes the model of the checkpoint as a GGUF file of llama.cpp to the key target.to. Matrices get `type`; without a
/// type, their own. Vectors, and the positions of GPT-2, are f32. A tokenizer.model or tokenizer.json among `files` or
/// in the checkpoint is written as the vocabulary; a note says why it is not. One put publishes the file. Blocks.
/// Errors: kNotFound if the checkpoint has no model; kUnsupported if it is none of Llama's or GPT-2's, or has a feature
/// that GGUF's metadata of them lack.
Result<ExportResult> ExportGguf(TensorStream& stream, const ExportTarget& target, std::optional<GgmlType> type,
                                const std::map<std::string, std::string>& files);

/// Writes a folder of Hugging Face's transformers or, with `adapter`, a PEFT adapter's folder. Also writes `files`,
/// keyed by name, beside the weights. With `quantization`, the matrices of a model's blocks are written as their codes
/// (IsQuantizable). Blocks. Errors: kUnsupported if the float32 scales of int8 cannot be aligned; kInvalidArgument if a
/// weight that is quantized is not finite; kNotFound if the checkpoint has no such weights or no configuration.
Result<ExportResult> ExportFolder(TensorStream& stream, const ExportTarget& target, bool adapter,
                                  const std::map<std::string, std::string>& files,
                                  std::optional<engine::Quantization> quantization = std::nullopt);

/// Writes a folder of torch.distributed.checkpoint: the tensors and values below `group`, or all of them if it is
/// empty. Blocks. Errors: kNotFound if the group has no tensors; kUnsupported if two entries would get the same name in
/// torch.
Result<ExportResult> ExportDcp(TensorStream& stream, const ExportTarget& target, std::string_view group);

/// Writes one file for torch.load: the tensors and values below `group`, or all of them if it is empty. Blocks.
/// Errors: kNotFound if the group has no tensors.
Result<ExportResult> ExportTorchFile(TensorStream& stream, const ExportTarget& target, std::string_view group);

}  // namespace millrace::checkpoint
