// Exports a checkpoint as a folder of Hugging Face's transformers or of PEFT.
#pragma once

#include <map>
#include <string>

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/stream/export_target.h"
#include "millrace/checkpoint/convert/stream/tensor_stream.h"

namespace millrace::checkpoint {

/// Writes a model's folder or, with `adapter`, a PEFT adapter's folder. Also writes `files`, keyed by name, beside the
/// weights. Blocks.
/// Errors: kNotFound if the checkpoint has no such weights or no configuration.
Result<ExportResult> ExportFolder(TensorStream& stream, const ExportTarget& target, bool adapter,
                                  const std::map<std::string, std::string>& files);

}  // namespace millrace::checkpoint
