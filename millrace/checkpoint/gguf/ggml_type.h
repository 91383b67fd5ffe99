// The element types of ggml that Millrace knows: floats, and blocks of 32 or 256 quantized numbers.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/format/dtype.h"

namespace millrace::checkpoint {

/// The numbers are those of GGUF files.
enum class GgmlType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
};

std::string_view GgmlTypeName(GgmlType type);  ///< "f32", "q8_0", …
/// Returns whether Quantize() makes blocks of the type.
bool CanWrite(GgmlType type);
/// Errors: kInvalidArgument if no type that can be written has that name.
Result<GgmlType> ParseGgmlType(std::string_view name);
/// Returns the type with that number. Errors: kUnsupported if Millrace does not read it.
Result<GgmlType> GgmlTypeOf(std::uint32_t number);

/// Returns the elements of a block: 1 for floats, 32 or 256 for quantized numbers.
std::uint64_t BlockElements(GgmlType type);
std::uint64_t BlockBytes(GgmlType type);
/// Returns the type of the elements in a checkpoint. Quantized numbers become F32, which holds their values exactly.
DType StoredType(GgmlType type);

/// Writes the values of whole blocks. REQUIRES: `into` has as many elements as the blocks.
void Dequantize(GgmlType type, ByteSpan blocks, std::span<float> into);
/// Writes blocks of the values, with the same bytes as ggml's quantize_row_q8_0_ref and quantize_row_q4_0_ref where the
/// compiler fuses multiplication and addition, as the usual builds of llama.cpp and the Python package gguf.
/// REQUIRES: CanWrite(type), values.size() is a multiple of BlockElements(type), and `into` fits.
void Quantize(GgmlType type, std::span<const float> values, MutableByteSpan into);

}  // namespace millrace::checkpoint
