// Element types of tensors, by safetensors' names.
#pragma once

#include <cstdint>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace::checkpoint {

enum class DType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kI64,
  kI32,
  kU8,
  kBool,
  kF64,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kF8E4M3,
  kF8E5M2,
};
inline constexpr int kDTypes = 15;  ///< the number of element types

/// Returns safetensors' name of the type: "F32", "BF16", …
std::string_view DTypeName(DType dtype);
/// Errors: kUnsupported if safetensors has no type of this name, or Millrace does not support it.
Result<DType> ParseDType(std::string_view name);
/// Returns the size of one element.
std::uint64_t DTypeBytes(DType dtype);

}  // namespace millrace::checkpoint
