// Exports a checkpoint as one file for torch.load.
#pragma once

#include <string_view>

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/tensors/export_target.h"
#include "millrace/checkpoint/convert/tensors/tensor_stream.h"

namespace millrace::checkpoint {

/// Writes the tensors and values below `group`, or all of them if it is empty. Blocks.
/// Errors: kNotFound if the group has no tensors.
Result<ExportResult> ExportTorchFile(TensorStream& stream, const ExportTarget& target, std::string_view group);

}  // namespace millrace::checkpoint
