#include <ATen/core/grad_mode.h>

#include <utility>

#include "millrace/engine/errors.h"
#include "millrace/engine/parallel/collective.h"

namespace millrace::engine {
namespace {

using collectives::DeviceMemory;
using collectives::ElementDevice;
using collectives::ElementType;

/// A device as a number.
int NumberOf(at::Device device) { return (static_cast<int>(device.type()) << 8) | (device.index() & 0xff); }
at::Device DeviceOf(int number) {
  return {static_cast<at::DeviceType>(number >> 8), static_cast<c10::DeviceIndex>(static_cast<std::int8_t>(number))};
}

/// The memory of libtorch's devices.
class TensorMemory final : public DeviceMemory {
 public:
  std::string NameOf(int number) const override { return DeviceOf(number).str(); }
  Result<Elements> New(const Elements& like) const override {
    return CatchTorch("memory for an exchange", [&]() -> Elements { return at::empty_like(TensorOf(like)); });
  }
  Status Copy(const Elements& to, const Elements& from) const override {
    return CatchTorch("copying what ranks exchange", [&] {
      const at::NoGradGuard no_grad;
      TensorOf(to).copy_(TensorOf(from));
    });
  }
  Status Add(const Elements& to, const Elements& what) const override {
    return CatchTorch("adding what ranks exchange", [&] {
      const at::NoGradGuard no_grad;
      TensorOf(to).add_(TensorOf(what));
    });
  }
};

const TensorMemory kTensorMemory;

ElementType ElementTypeOf(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return ElementType::kFloat32;
    case at::kBFloat16:
      return ElementType::kBFloat16;
    case at::kHalf:
      return ElementType::kFloat16;
    case at::kDouble:
      return ElementType::kFloat64;
    case at::kLong:
      return ElementType::kInt64;
    case at::kInt:
      return ElementType::kInt32;
    case at::kByte:
      return ElementType::kUint8;
    default:
      return ElementType::kBytes;
  }
}

at::ScalarType ScalarOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return at::kFloat;
    case ElementType::kBFloat16:
      return at::kBFloat16;
    case ElementType::kFloat16:
      return at::kHalf;
    case ElementType::kFloat64:
      return at::kDouble;
    case ElementType::kInt64:
      return at::kLong;
    case ElementType::kInt32:
      return at::kInt;
    case ElementType::kUint8:
    case ElementType::kBytes:
      return at::kByte;
  }
  std::unreachable();
}

}  // namespace

at::Tensor TensorOf(const Elements& elements) {
  const at::Device device = elements.device.is_host() ? at::Device(at::kCPU) : DeviceOf(elements.device.number);
  return at::for_blob(elements.data, {elements.count})
      .deleter([owner = elements.owner](void*) {})
      .options(at::device(device).dtype(ScalarOf(elements.type)))
      .target_device(device)
      .make_tensor();
}

}  // namespace millrace::engine

namespace millrace::collectives {

Elements ElementsOf<at::Tensor>::View(const at::Tensor& tensor) {
  Elements elements;
  if (!tensor.defined()) return elements;
  if (!tensor.device().is_cpu()) elements.device = {&engine::kTensorMemory, engine::NumberOf(tensor.device())};
  if (!tensor.is_contiguous()) {
    elements.fault = "not contiguous";
    return elements;
  }
  elements.fault = nullptr;
  elements.data = tensor.data_ptr();
  elements.type = engine::ElementTypeOf(tensor.scalar_type());
  elements.count = elements.type == ElementType::kBytes ? static_cast<std::int64_t>(tensor.nbytes()) : tensor.numel();
  elements.owner = std::make_shared<const at::Tensor>(tensor);
  return elements;
}

}  // namespace millrace::collectives
