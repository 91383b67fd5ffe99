#include "millrace/checkpoint/format/dtype.h"

#include <array>
#include <string>

#include "millrace/base/result.h"

namespace millrace::checkpoint {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<DTypeInfo, kDTypes> kDTypeInfos{{{DType::kF32, "F32", 4},
                                                      {DType::kF16, "F16", 2},
                                                      {DType::kBF16, "BF16", 2},
                                                      {DType::kI64, "I64", 8},
                                                      {DType::kI32, "I32", 4},
                                                      {DType::kU8, "U8", 1},
                                                      {DType::kBool, "BOOL", 1},
                                                      {DType::kF64, "F64", 8},
                                                      {DType::kI16, "I16", 2},
                                                      {DType::kI8, "I8", 1},
                                                      {DType::kU64, "U64", 8},
                                                      {DType::kU32, "U32", 4},
                                                      {DType::kU16, "U16", 2},
                                                      {DType::kF8E4M3, "F8_E4M3", 1},
                                                      {DType::kF8E5M2, "F8_E5M2", 1}}};

const DTypeInfo& InfoOf(DType dtype) { return kDTypeInfos[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::string_view DTypeName(DType dtype) { return InfoOf(dtype).name; }
std::uint64_t DTypeBytes(DType dtype) { return InfoOf(dtype).bytes; }

Result<DType> ParseDType(std::string_view name) {
  for (const DTypeInfo& info : kDTypeInfos)
    if (info.name == name) return info.dtype;
  std::string known;
  for (const DTypeInfo& info : kDTypeInfos) known += fmt::format("{}{}", known.empty() ? "" : ", ", info.name);
  return Fail(Code::kUnsupported, "element type \"{}\" is none of {}", name, known);
}

}  // namespace millrace::checkpoint
