#include "millrace/engine/parameters/scalar_types.h"

#include <ATen/core/grad_mode.h>

namespace millrace::engine {

MutableByteSpan BytesOf(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous() && tensor.device().is_cpu(), "BytesOf wants a contiguous CPU tensor");
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

namespace {
struct TypeName {
  at::ScalarType type;
  std::string_view name;
};
constexpr TypeName kTypeNames[] = {
    {at::kFloat, "F32"}, {at::kBFloat16, "BF16"}, {at::kHalf, "F16"}, {at::kLong, "I64"}, {at::kInt, "I32"}};
}  // namespace

Result<at::ScalarType> ParseScalarType(std::string_view name) {
  for (const TypeName& entry : kTypeNames) {
    if (entry.name == name) return entry.type;
  }
  return Fail(Code::kUnsupported, "tensor type {} is not one the engine computes with (F32, BF16, F16, I64, I32)",
              name);
}

std::string_view ScalarTypeName(at::ScalarType type) {
  for (const TypeName& entry : kTypeNames) {
    if (entry.type == type) return entry.name;
  }
  return "?";
}

Status CopyInto(const at::Tensor& into, at::ScalarType type, ByteSpan bytes) {
  const std::size_t wanted = static_cast<std::size_t>(into.numel()) * at::elementSize(type);
  if (bytes.size() != wanted) {
    return Fail(Code::kInvalidArgument, "{} bytes of {} do not fill a tensor of {} elements", bytes.size(),
                ScalarTypeName(type), into.numel());
  }
  const at::NoGradGuard no_grad;
  const at::Tensor source = at::from_blob(const_cast<std::byte*>(bytes.data()), into.sizes(), at::TensorOptions(type));
  into.copy_(source);
  return {};
}

}  // namespace millrace::engine
