// Exports a checkpoint as a folder of Hugging Face's transformers or of PEFT.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/tensors/export_target.h"
#include "millrace/checkpoint/convert/tensors/tensor_stream.h"
#include "millrace/engine/quantized/quantization.h"

namespace millrace::checkpoint {

/// Writes a model's folder or, with `adapter`, a PEFT adapter's folder. Also writes `files`, keyed by name, beside the
/// weights. With `quantization`, the matrices of a model's blocks are written as their codes (IsQuantizable). Blocks.
/// Errors: kUnsupported if the float32 scales of int8 cannot be aligned; kInvalidArgument if a weight that is quantized
/// is not finite; kNotFound if the checkpoint has no such weights or no configuration.
Result<ExportResult> ExportFolder(TensorStream& stream, const ExportTarget& target, bool adapter,
                                  const std::map<std::string, std::string>& files,
                                  std::optional<engine::Quantization> quantization = std::nullopt);

}  // namespace millrace::checkpoint
