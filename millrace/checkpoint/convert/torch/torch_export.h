// Exports as one file that torch.load reads.
#pragma once

#include <string_view>

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/stream/export_target.h"
#include "millrace/checkpoint/convert/stream/tensor_stream.h"

namespace millrace::checkpoint {

/// Writes the state below `group`; empty: all of it. Blocks.
Result<ExportResult> ExportTorchFile(TensorStream& stream, const ExportTarget& target, std::string_view group);

}  // namespace millrace::checkpoint
