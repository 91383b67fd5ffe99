// The blocks of quantized numbers that Millrace reads of GGUF files and does not write.
#pragma once

#include <cstddef>
#include <span>

#include "millrace/base/bytes.h"
#include "millrace/checkpoint/gguf/ggml_type.h"

namespace millrace::checkpoint {

/// Writes the values of one block, with the order of operations of ggml's dequantize_row_*. REQUIRES: the type is one
/// of those that CanWrite() refuses; `block` and `into` have the size of its block.
void DequantizeBlock(GgmlType type, const std::byte* block, std::span<float> into);

}  // namespace millrace::checkpoint
