// Element types of tensors, by safetensors' names.
#pragma once

#include <cstdint>
#include <string_view>

#include "millrace/base/error.h"

namespace millrace::checkpoint {

/// The type of an element. All are little-endian.
enum class DType : std::uint8_t {
  kF32,     ///< IEEE 754, 32 bits
  kF16,     ///< IEEE 754, 16 bits
  kBF16,    ///< the upper half of a kF32
  kI64,     ///< signed, 64 bits
  kI32,     ///< signed, 32 bits
  kU8,      ///< unsigned, 8 bits
  kBool,    ///< a byte: 0 or 1
  kF64,     ///< IEEE 754, 64 bits
  kI16,     ///< signed, 16 bits
  kI8,      ///< signed, 8 bits
  kU64,     ///< unsigned, 64 bits
  kU32,     ///< unsigned, 32 bits
  kU16,     ///< unsigned, 16 bits
  kF8E4M3,  ///< 8 bits: 4 of the exponent, 3 of the fraction; no infinity
  kF8E5M2,  ///< 8 bits: 5 of the exponent, 2 of the fraction
};
inline constexpr int kDTypes = 15;  ///< the number of element types

/// Returns safetensors' name of the type: "F32", "BF16", …
std::string_view DTypeName(DType dtype);
/// Errors: kUnsupported if safetensors has no type of this name, or Millrace does not support it.
Result<DType> ParseDType(std::string_view name);
/// Returns the size of one element.
std::uint64_t DTypeBytes(DType dtype);

}  // namespace millrace::checkpoint
