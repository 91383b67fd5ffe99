// The element types of ggml that Millrace reads and writes: floats, and blocks of 32 quantized numbers.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/format/dtype.h"

namespace millrace::checkpoint {

/// The numbers are those of GGUF files.
enum class GgmlType : std::uint32_t { kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ8_0 = 8, kBF16 = 30 };

std::string_view GgmlTypeName(GgmlType type);  ///< "f32", "q8_0", …
/// Errors: kInvalidArgument if no type has that name.
Result<GgmlType> ParseGgmlType(std::string_view name);
/// Returns the type with that number. Errors: kUnsupported if Millrace does not read it.
Result<GgmlType> GgmlTypeOf(std::uint32_t number);

/// Returns the elements of a block: 1 for floats, 32 for quantized numbers.
std::uint64_t BlockElements(GgmlType type);
std::uint64_t BlockBytes(GgmlType type);
/// Returns the type of the elements in a checkpoint. Quantized numbers become F32, which holds their values exactly.
DType StoredType(GgmlType type);

/// Writes the values of whole blocks. REQUIRES: `into` has as many elements as the blocks.
void Dequantize(GgmlType type, ByteSpan blocks, std::span<float> into);
/// Writes blocks of the values, with the same bytes as ggml's quantize_row_q8_0_ref and quantize_row_q4_0_ref where the
/// compiler fuses multiplication and addition, as the usual builds of llama.cpp and the Python package gguf.
/// REQUIRES: values.size() is a multiple of BlockElements(type), and `into` fits.
void Quantize(GgmlType type, std::span<const float> values, MutableByteSpan into);

}  // namespace millrace::checkpoint
