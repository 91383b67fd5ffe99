#include "millrace/engine/parameters.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <numbers>
#include <span>

#include "millrace/base/hash/random.h"

namespace millrace::engine {
namespace {

constexpr std::int64_t kAlign = 16;  // elements: 64 bytes of float32, a cache line and an AVX-512 register

std::int64_t Product(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  return elements;
}

std::uint64_t HashName(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = Mix64(seed);
  for (const char c : name) hash = Mix64(hash ^ static_cast<unsigned char>(c));
  return hash;
}

/// Uniform in (0, 1].
double UnitInterval(std::uint64_t word) { return (static_cast<double>(word >> 11) + 1) * 0x1p-53; }

/// Box and Muller's transform of a counter-based generator. Pair i depends only on key and i.
void FillNormal(std::uint64_t key, double stddev, std::span<float> into) {
  const auto pairs = static_cast<std::int64_t>((into.size() + 1) / 2);
  at::parallel_for(0, pairs, 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t pair = begin; pair < end; ++pair) {
      const auto i = 2 * static_cast<std::uint64_t>(pair);
      const double radius = stddev * std::sqrt(-2 * std::log(UnitInterval(Mix64(key + i))));
      const double angle = 2 * std::numbers::pi * UnitInterval(Mix64(key + i + 1));
      into[i] = static_cast<float>(radius * std::cos(angle));
      if (i + 1 < into.size()) into[i + 1] = static_cast<float>(radius * std::sin(angle));
    }
  });
}

}  // namespace

void Weight::GradientAdded() const {
  if (owner != nullptr && owner->on_gradient) owner->on_gradient(begin, end);
}

ParameterBuffer::ParameterBuffer(const std::vector<ParameterSpec>& specs, at::ScalarType dtype, at::Device device)
    : specs_(specs) {
  std::vector<std::int64_t> begins;
  std::int64_t size = 0;
  for (const ParameterSpec& spec : specs) {
    if (!spec.joins_previous) size = (size + kAlign - 1) / kAlign * kAlign;
    begins.push_back(size);
    size += Product(spec.shape);
  }
  values_ = at::zeros({size}, at::TensorOptions().dtype(dtype).device(device));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    NamedParameter parameter{.name = specs[i].name, .begin = begins[i], .uses = specs[i].uses};
    parameter.tensor = values_.narrow(0, begins[i], Product(specs[i].shape)).view(specs[i].shape);
    parameters_.push_back(std::move(parameter));
  }
}

void ParameterBuffer::Initialize(std::uint64_t seed, double stddev) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (specs_[i].init == ParameterSpec::Init::kOnes) {
      parameters_[i].tensor.fill_(1);
      continue;
    }
    at::Tensor host = at::empty({parameters_[i].elements()}, at::kFloat);
    FillNormal(HashName(seed, specs_[i].name), stddev,
               {host.data_ptr<float>(), static_cast<std::size_t>(host.numel())});
    parameters_[i].tensor.copy_(host.view(specs_[i].shape));
  }
}

void ParameterBuffer::EnableGradients() {
  if (gradients_.defined()) return;
  gradients_ = at::zeros({size()}, values_.options().dtype(at::kFloat));
  for (NamedParameter& parameter : parameters_) {
    parameter.gradient = gradients_.narrow(0, parameter.begin, parameter.elements()).view(parameter.tensor.sizes());
  }
}

Weight ParameterBuffer::Use(std::size_t first, std::size_t count) {
  const NamedParameter& front = parameters_[first];
  const NamedParameter& back = parameters_[first + count - 1];
  Weight weight{.owner = this, .begin = front.begin, .end = back.begin + back.elements()};
  std::vector<std::int64_t> shape = front.tensor.sizes().vec();
  if (count > 1) shape[0] = (weight.end - weight.begin) / (front.elements() / shape[0]);
  weight.value = values_.narrow(0, weight.begin, weight.end - weight.begin).view(shape);
  if (gradients_.defined()) {
    weight.value.set_requires_grad(true);
    weight.gradient = gradients_.narrow(0, weight.begin, weight.end - weight.begin).view(shape);
  }
  return weight;
}

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
