#include "millrace/engine/parameters/parameter_buffer.h"

#include <ATen/Parallel.h>

#include <algorithm>
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

/// Box and Muller's transform of a counter-based generator. Elements 2i and 2i + 1 depend only on key and i. Fills
/// elements first … first + into.size() - 1.
void FillNormal(std::uint64_t key, double stddev, std::int64_t first, std::span<float> into) {
  const auto count = static_cast<std::int64_t>(into.size());
  at::parallel_for(first / 2, (first + count + 1) / 2, 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t pair = begin; pair < end; ++pair) {
      const auto i = 2 * static_cast<std::uint64_t>(pair);
      const double radius = stddev * std::sqrt(-2 * std::log(UnitInterval(Mix64(key + i))));
      const double angle = 2 * std::numbers::pi * UnitInterval(Mix64(key + i + 1));
      const std::int64_t at = 2 * pair - first;
      if (at >= 0) into[at] = static_cast<float>(radius * std::cos(angle));
      if (at + 1 < count) into[at + 1] = static_cast<float>(radius * std::sin(angle));
    }
  });
}

/// Calls `each(first, count)` with the runs of consecutive elements of the whole tensor that make up a slice.
template <class Each>
void ForEachRun(const ParameterSpec& spec, Each&& each) {
  if (spec.slice.whole()) return each(std::int64_t{0}, Product(spec.shape));
  std::int64_t outer = 1, inner = 1;
  for (std::size_t dim = 0; dim < spec.shape.size(); ++dim) {
    (dim < spec.slice.dim ? outer : inner) *= dim == spec.slice.dim ? 1 : spec.shape[dim];
  }
  for (std::int64_t row = 0; row < outer; ++row) {
    each((row * spec.shape[spec.slice.dim] + spec.slice.begin) * inner, spec.slice.extent * inner);
  }
}

}  // namespace

void Weight::GradientAdded() const {
  if (owner != nullptr && owner->on_gradient) owner->on_gradient(begin, end);
}

const Weight& WeightHandle::operator*() const {
  static const Weight kNone;
  return weight_ != nullptr ? *weight_ : kNone;
}

void ParameterBuffer::BeginGroup() {
  TORCH_CHECK(!values_.defined(), "groups are declared before they are allocated");
  const std::int64_t begin = (size_ + kAlign - 1) / kAlign * kAlign;
  size_ = begin;
  groups_.push_back({.begin = begin, .end = begin, .uses = {groups_.size()}});
}

std::size_t ParameterBuffer::Declare(ParameterSpec spec) {
  TORCH_CHECK(!values_.defined(), "parameters are declared before they are allocated");
  if (groups_.empty()) BeginGroup();
  if (!spec.joins_previous) size_ = (size_ + kAlign - 1) / kAlign * kAlign;
  parameters_.push_back({.name = spec.name,
                         .begin = size_,
                         .transposed = spec.transposed,
                         .partial_gradient = spec.partial_gradient,
                         .shared_by_stages = spec.shared_by_stages,
                         .whole_shape = spec.shape,
                         .slice = spec.slice});
  size_ += Product(spec.slice.ShapeOf(spec.shape));
  groups_.back().end = size_;
  specs_.push_back(std::move(spec));
  return specs_.size() - 1;
}

std::size_t ParameterBuffer::Find(std::string_view name) const {
  const auto found = std::ranges::find(specs_, name, &ParameterSpec::name);
  TORCH_CHECK(found != specs_.end(), "no parameter ", std::string(name));
  return static_cast<std::size_t>(found - specs_.begin());
}

WeightHandle ParameterBuffer::Use(std::size_t first, std::size_t count) {
  TORCH_CHECK(!values_.defined(), "uses of parameters are declared before they are allocated");
  for (std::size_t i = first; i < first + count; ++i) ++parameters_[i].uses;
  const auto owner = std::ranges::upper_bound(groups_, parameters_[first].begin, {}, &ParameterGroup::begin) - 1;
  const auto group = static_cast<std::size_t>(owner - groups_.begin());
  std::vector<std::size_t>& used = groups_.back().uses;
  if (std::ranges::find(used, group) == used.end()) used.push_back(group);
  uses_.push_back({first, count, {}});
  return WeightHandle(&uses_.back().weight);
}

void ParameterBuffer::Allocate(at::ScalarType dtype, at::Device device) {
  values_ = at::zeros({size_}, at::TensorOptions().dtype(dtype).device(device));
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    NamedParameter& parameter = parameters_[i];
    const std::vector<std::int64_t> shape = specs_[i].slice.ShapeOf(specs_[i].shape);
    parameter.tensor = values_.narrow(0, parameter.begin, Product(shape)).view(shape);
  }
  for (WeightUse& use : uses_) MakeViews(use);
}

void ParameterBuffer::Initialize(std::uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const ParameterSpec& spec = specs_[i];
    if (spec.init != ParameterSpec::Init::kNormal) {
      parameters_[i].tensor.fill_(spec.init == ParameterSpec::Init::kOnes ? 1 : 0);
      continue;
    }
    at::Tensor host = at::empty(parameters_[i].tensor.sizes(), at::kFloat);
    float* into = host.data_ptr<float>();
    ForEachRun(spec, [&](std::int64_t first, std::int64_t count) {
      FillNormal(HashName(seed, spec.name), spec.stddev, first, {into, static_cast<std::size_t>(count)});
      into += count;
    });
    parameters_[i].tensor.copy_(host);
  }
}

void ParameterBuffer::EnableGradients() {
  if (gradients_.defined()) return;
  gradients_ = at::zeros({size()}, values_.options().dtype(at::kFloat));
  for (NamedParameter& parameter : parameters_) {
    parameter.gradient = gradients_.narrow(0, parameter.begin, parameter.elements()).view(parameter.tensor.sizes());
  }
  for (WeightUse& use : uses_) MakeViews(use);
}

void ParameterBuffer::MakeViews(WeightUse& use) {
  const NamedParameter& front = parameters_[use.first];
  const NamedParameter& back = parameters_[use.first + use.count - 1];
  Weight& weight = use.weight;
  weight = {.owner = this, .begin = front.begin, .end = back.begin + back.elements()};
  std::vector<std::int64_t> shape = front.tensor.sizes().vec();
  if (use.count > 1) shape[0] = (weight.end - weight.begin) / (front.elements() / shape[0]);
  weight.value = values_.narrow(0, weight.begin, weight.end - weight.begin).view(shape);
  if (!gradients_.defined()) return;
  weight.value.set_requires_grad(true);
  weight.gradient = gradients_.narrow(0, weight.begin, weight.end - weight.begin).view(shape);
}

}  // namespace millrace::engine
