// The weights of a model that an adapter changes: their names, their layout and their elements.
#pragma once

#include <cstddef>
#include <cstring>
#include <optional>
#include <string>

#include "millrace/checkpoint/format/dtype.h"
#include "millrace/checkpoint/format/half.h"
#include "millrace/checkpoint/format/manifest.h"

namespace millrace::checkpoint {

/// Returns whether LoadFloat() and StoreFloat() know the type.
inline bool IsFloat(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }

/// Returns an element. REQUIRES: IsFloat(dtype).
inline float LoadFloat(DType dtype, const std::byte* at) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return dtype == DType::kBF16 ? Bf16ToFloat(bits) : HalfToFloat(bits);
}

/// Writes an element, rounded to the nearest. REQUIRES: IsFloat(dtype).
inline void StoreFloat(DType dtype, float value, std::byte* at) {
  if (dtype == DType::kF32) {
    std::memcpy(at, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = dtype == DType::kBF16 ? FloatToBf16(value) : FloatToHalf(value);
  std::memcpy(at, &bits, sizeof bits);
}

/// Returns the tensor that has a weight of the model; nothing if there is none. Files of a base model alone lack the
/// first part of names ("transformer.").
std::optional<std::string> FindWeight(const Manifest& base, const std::string& name);

/// Returns whether the checkpoint has the weight as the model does, where Hugging Face's files have its transpose.
bool StoresTransposed(const Manifest& base, const std::string& weight);

}  // namespace millrace::checkpoint
