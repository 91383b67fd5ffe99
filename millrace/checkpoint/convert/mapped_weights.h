// The quantized weights of a folder on a local disk, mapped into memory. Processes of a machine share the pages.
#pragma once

#include <filesystem>
#include <memory>

#include "millrace/base/result.h"
#include "millrace/engine/quantized/quantized_matrix.h"

namespace millrace::checkpoint {

/// Maps the *.safetensors files of a folder and finds the weights that nf4, int8 or fp8 stores there, with or
/// without double quantization. Their names are those of a checkpoint (ModelNames). The matrices keep the mapping.
/// Blocks.
/// Errors: kCorrupt if a weight lacks a part, or a part has another length than the weight's shape says; kUnsupported
/// for other quantizations, such as fp4.
Result<std::shared_ptr<const engine::QuantizedWeights>> MapQuantizedWeights(const std::filesystem::path& folder);

}  // namespace millrace::checkpoint
