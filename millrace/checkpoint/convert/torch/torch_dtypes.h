// Torch's names of element types and of their storages. Only for the sources of this module.
#pragma once

#include <string_view>

#include "millrace/checkpoint/format/dtype.h"

namespace millrace::checkpoint {

struct TorchDType {
  DType dtype;
  std::string_view name;     ///< "float32" of torch.float32
  std::string_view storage;  ///< "FloatStorage" of torch.FloatStorage; empty if torch saves an UntypedStorage
};
inline constexpr TorchDType kTorchDTypes[] = {
    {DType::kF64, "float64", "DoubleStorage"},
    {DType::kF32, "float32", "FloatStorage"},
    {DType::kF16, "float16", "HalfStorage"},
    {DType::kBF16, "bfloat16", "BFloat16Storage"},
    {DType::kI64, "int64", "LongStorage"},
    {DType::kI32, "int32", "IntStorage"},
    {DType::kI16, "int16", "ShortStorage"},
    {DType::kI8, "int8", "CharStorage"},
    {DType::kU8, "uint8", "ByteStorage"},
    {DType::kBool, "bool", "BoolStorage"},
    {DType::kU64, "uint64", ""},
    {DType::kU32, "uint32", ""},
    {DType::kU16, "uint16", ""},
    {DType::kF8E4M3, "float8_e4m3fn", ""},
    {DType::kF8E5M2, "float8_e5m2", ""},
};

/// Returns the type of a global such as "torch.float32"; nullptr if there is none.
inline const TorchDType* FindTorchDType(std::string_view global) {
  for (const TorchDType& one : kTorchDTypes)
    if (global.starts_with("torch.") && global.substr(6) == one.name) return &one;
  return nullptr;
}
/// Returns the type of a storage such as "torch.FloatStorage"; nullptr if there is none.
inline const TorchDType* FindTorchStorage(std::string_view global) {
  for (const TorchDType& one : kTorchDTypes)
    if (!one.storage.empty() && global.starts_with("torch.") && global.substr(6) == one.storage) return &one;
  return nullptr;
}
inline const TorchDType& TorchDTypeOf(DType dtype) {
  for (const TorchDType& one : kTorchDTypes)
    if (one.dtype == dtype) return one;
  return kTorchDTypes[0];
}

}  // namespace millrace::checkpoint
