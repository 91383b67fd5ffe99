// Exports in the formats of Hugging Face's libraries.
#pragma once

#include <map>
#include <string>

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/stream/export_target.h"
#include "millrace/checkpoint/convert/stream/tensor_stream.h"

namespace millrace::checkpoint {

/// Writes the folder of a model, or with `adapter` that of a PEFT adapter. `files` are further files to write beside
/// the weights, by name. Blocks.
Result<ExportResult> ExportFolder(TensorStream& stream, const ExportTarget& target, bool adapter,
                                  const std::map<std::string, std::string>& files);

}  // namespace millrace::checkpoint
