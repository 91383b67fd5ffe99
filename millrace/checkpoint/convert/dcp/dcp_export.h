// Exports as a folder of torch.distributed.checkpoint.
#pragma once

#include <string_view>

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/stream/export_target.h"
#include "millrace/checkpoint/convert/stream/tensor_stream.h"

namespace millrace::checkpoint {

/// Writes the state below `group`; empty: all of it. Blocks.
Result<ExportResult> ExportDcp(TensorStream& stream, const ExportTarget& target, std::string_view group);

}  // namespace millrace::checkpoint
