#include "millrace/engine/parameters/parameter_buffer.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "millrace/base/glob.h"
#include "millrace/base/hash/name_hash.h"
#include "millrace/base/hash/random.h"
#include "millrace/engine/device/built_with_cuda.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/ops/cuda/tensors/initial_values.h"

namespace millrace::engine {
namespace {

constexpr std::int64_t kAlign = 16;  // elements: 64 bytes of float32, a cache line and an AVX-512 register

std::int64_t Product(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  return elements;
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

/// Uniform in (0, 1].
double UnitInterval(std::uint64_t word) { return (static_cast<double>(word >> 11) + 1) * 0x1p-53; }

/// Fill `run`, a contiguous float32 tensor, with elements `first` … of a tensor. The elements depend only on `key` and
/// their index. The distribution is normal (Box and Muller's transform of a counter-based generator), or uniform around
/// 0. On a GPU, some values differ from those of a CPU in the last bit.
void FillNormal(std::uint64_t key, double stddev, std::int64_t first, const at::Tensor& run) {
  if constexpr (ops::kBuiltWithCuda) {
    if (run.is_cuda()) return ops::cuda::FillNormal(key, stddev, first, run);
  }
  const std::int64_t count = run.numel();
  auto* const into = run.data_ptr<float>();
  // Elements 2i and 2i + 1 depend only on key and i.
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

void FillUniform(std::uint64_t key, double stddev, std::int64_t first, const at::Tensor& run) {
  if constexpr (ops::kBuiltWithCuda) {
    if (run.is_cuda()) return ops::cuda::FillUniform(key, stddev, first, run);
  }
  const double bound = stddev * std::numbers::sqrt3;
  auto* const into = run.data_ptr<float>();
  at::parallel_for(0, run.numel(), 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const double unit = UnitInterval(Mix64(key + static_cast<std::uint64_t>(first + i)));
      into[i] = static_cast<float>(bound * (2 * unit - 1));
    }
  });
}

}  // namespace

bool TrainedNames::Trains(std::string_view name) const {
  const auto any = [&](const std::vector<std::string>& globs) {
    return std::ranges::any_of(globs, [&](const std::string& glob) { return GlobMatches(glob, name); });
  };
  return any(except) || !any(freeze);
}

const Weight& WeightHandle::operator*() const {
  static const Weight kNone;
  return weight_ != nullptr ? *weight_ : kNone;
}

void ParameterBuffer::BeginGroup() {
  TORCH_CHECK(!allocated_, "groups are declared before they are allocated");
  StartGroup();
  part_ = groups_.size() - 1;
  groups_.back().uses = {part_};
  open_[0] = open_[1] = std::nullopt;
}

void ParameterBuffer::StartGroup() { groups_.emplace_back(); }

/// Until PlaceGroups(), a group begins at 0.
std::size_t ParameterBuffer::GroupFor(const ParameterSpec& spec, bool trainable) {
  std::optional<std::size_t>& open = open_[trainable ? 1 : 0];
  if (open && !spec.shared_by_stages) return *open;
  if (groups_.back().end > 0) StartGroup();
  groups_.back().trainable = trainable;
  const std::size_t group = groups_.size() - 1;
  if (spec.shared_by_stages) {
    open_[0] = open_[1] = std::nullopt;
  } else {
    open = group;
  }
  return group;
}

std::size_t ParameterBuffer::Declare(ParameterSpec spec) {
  TORCH_CHECK(!allocated_, "parameters are declared before they are allocated");
  if (groups_.empty()) BeginGroup();
  const bool trainable = trained_.Trains(spec.name);
  if (spec.joins_previous && parameters_.back().trainable != trainable) {
    throw ErrorException(Error(Code::kInvalidArgument, fmt::format("{} and {} are one matrix in memory; freeze both or "
                                                                   "neither",
                                                                   parameters_.back().name, spec.name)));
  }
  const std::size_t number = GroupFor(spec, trainable);
  ParameterGroup& group = groups_[number];
  if (!spec.joins_previous) group.end = (group.end + kAlign - 1) / kAlign * kAlign;
  parameters_.push_back({.name = spec.name,
                         .begin = group.end,
                         .group = number,
                         .transposed = spec.transposed,
                         .partial_gradient = spec.partial_gradient,
                         .shared_by_stages = spec.shared_by_stages,
                         .whole_shape = spec.shape,
                         .slice = spec.slice,
                         .repeats = spec.repeats,
                         .trainable = trainable});
  group.end += Product(spec.slice.ShapeOf(spec.shape));
  specs_.push_back(std::move(spec));
  return specs_.size() - 1;
}

void ParameterBuffer::PlaceGroups() {
  const std::int64_t unit = kAlign * sharding_.parts();
  for (ParameterGroup& group : groups_) {
    const std::int64_t elements = (group.end + unit - 1) / unit * unit;
    group.begin = std::exchange(size_, size_ + elements);
    group.end = size_;
    if (group.trainable) group.trained_begin = std::exchange(trained_size_, trained_size_ + elements);
  }
  for (NamedParameter& parameter : parameters_) parameter.begin += groups_[parameter.group].begin;
}

std::size_t ParameterBuffer::Find(std::string_view name) const {
  const auto found = std::ranges::find(specs_, name, &ParameterSpec::name);
  TORCH_CHECK(found != specs_.end(), "no parameter ", std::string(name));
  return static_cast<std::size_t>(found - specs_.begin());
}

WeightHandle ParameterBuffer::Use(std::size_t first, std::size_t count) {
  TORCH_CHECK(!allocated_, "uses of parameters are declared before they are allocated");
  std::vector<std::size_t>& used = groups_[part_].uses;
  const std::size_t group = parameters_[first].group;
  if (std::ranges::find(used, group) == used.end()) used.push_back(group);
  uses_.push_back({first, count, {}});
  return WeightHandle(&uses_.back().weight);
}

void ParameterBuffer::Allocate(at::ScalarType dtype, at::Device device) {
  PlaceGroups();
  allocated_ = true;
  options_ = at::TensorOptions().dtype(dtype).device(device);
  values_ = at::zeros({sharding_.divides_values() ? owned_size() : size_}, options_);
  for (const ParameterGroup& group : groups_) {
    memory_.push_back({.values = sharding_.divides_values() ? TensorWithoutMemory(group.size(), dtype, device)
                                                            : values_.narrow(0, group.begin, group.size())});
  }
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    NamedParameter& parameter = parameters_[i];
    const std::vector<std::int64_t> shape = specs_[i].slice.ShapeOf(specs_[i].shape);
    const std::int64_t begin = parameter.begin - groups_[parameter.group].begin;
    parameter.tensor = GroupValues(parameter.group).narrow(0, begin, Product(shape)).view(shape);
  }
  for (WeightUse& use : uses_) MakeViews(use);
  MakeOwned();
}

void ParameterBuffer::Initialize(std::uint64_t seed, const std::function<bool(const std::string& name)>& wanted) {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<std::size_t>> filled(groups_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!wanted || wanted(specs_[i].name)) filled[parameters_[i].group].push_back(i);
  }
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (filled[group].empty()) continue;
    if (!sharding_.divides_values()) {
      InitializeGroup(filled[group], seed);
      continue;
    }
    AllocateValues(group);
    GroupValues(group).zero_();
    InitializeGroup(filled[group], seed);
    const std::int64_t count = groups_[group].size() / sharding_.parts();
    OwnedValues(group).copy_(GroupValues(group).narrow(0, sharding_.part() * count, count));
    FreeValues(group);
  }
}

void ParameterBuffer::InitializeGroup(std::span<const std::size_t> parameters, std::uint64_t seed) {
  for (const std::size_t i : parameters) {
    const ParameterSpec& spec = specs_[i];
    const ParameterSpec::Init init = spec.init;
    if (init == ParameterSpec::Init::kOnes || init == ParameterSpec::Init::kZeros) {
      parameters_[i].tensor.fill_(init == ParameterSpec::Init::kOnes ? 1 : 0);
      continue;
    }
    const auto fill = init == ParameterSpec::Init::kNormal ? FillNormal : FillUniform;
    const at::Tensor values = at::empty({parameters_[i].elements()}, options_.dtype(at::kFloat));
    std::int64_t done = 0;
    ForEachRun(spec, [&](std::int64_t first, std::int64_t count) {
      fill(HashName(seed, spec.name), spec.stddev, first, values.narrow(0, done, count));
      done += count;
    });
    parameters_[i].tensor.copy_(values.view_as(parameters_[i].tensor));
  }
}

void ParameterBuffer::EnableGradients() {
  if (gradients_.defined()) return;
  const bool divides = sharding_.divides_gradients();
  gradients_ = at::zeros({divides ? owned_trained_size() : trained_size_}, options_.dtype(at::kFloat));
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const ParameterGroup& group = groups_[i];
    if (!group.trainable) continue;
    memory_[i].gradients = divides ? TensorWithoutMemory(group.size(), at::kFloat, device())
                                   : gradients_.narrow(0, group.trained_begin, group.size());
  }
  for (NamedParameter& parameter : parameters_) {
    if (!parameter.trainable) continue;
    const std::int64_t begin = parameter.begin - groups_[parameter.group].begin;
    parameter.gradient =
        GroupGradients(parameter.group).narrow(0, begin, parameter.elements()).view_as(parameter.tensor);
  }
  for (WeightUse& use : uses_) MakeViews(use);
  MakeOwned();
}

void ParameterBuffer::MakeViews(WeightUse& use) {
  const NamedParameter& front = parameters_[use.first];
  const NamedParameter& back = parameters_[use.first + use.count - 1];
  const std::int64_t begin = front.begin - groups_[front.group].begin;
  const std::int64_t count = back.begin + back.elements() - front.begin;
  std::vector<std::int64_t> shape = front.tensor.sizes().vec();
  if (use.count > 1) shape[0] = count / (front.elements() / shape[0]);
  use.weight.value = GroupValues(front.group).narrow(0, begin, count).view(shape);
  if (!gradients_.defined() || !front.trainable) return;
  use.weight.value.set_requires_grad(true);
  use.weight.gradient = GroupGradients(front.group).narrow(0, begin, count).view(shape);
}

void ParameterBuffer::MakeOwned() {
  spans_.clear();
  pieces_.clear();
  const bool by_group = sharding_.divides_state() || trained_size_ < size_;
  std::vector<std::size_t> span_of(groups_.size(), 0);
  if (!by_group) spans_.push_back({0, values_, gradients_});
  for (std::size_t i = 0; by_group && i < groups_.size(); ++i) {
    if (!groups_[i].trainable) continue;
    span_of[i] = spans_.size();
    spans_.push_back({groups_[i].trained_begin / sharding_.parts(), OwnedValues(i), OwnedGradients(i)});
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const NamedParameter& parameter = parameters_[i];
    const ParameterGroup& group = groups_[parameter.group];
    const at::Tensor values = OwnedValues(parameter.group), gradients = OwnedGradients(parameter.group);
    // The first element of the buffer that this rank owns in the group, and the parameter's elements that it owns.
    const std::int64_t start = group.begin + sharding_.part() * values.numel();
    const std::int64_t begin = std::max(parameter.begin, start);
    const std::int64_t end = std::min(parameter.begin + parameter.elements(), start + values.numel());
    if (begin >= end) continue;
    const auto part = [&](const at::Tensor& all) {
      return all.defined() ? all.narrow(0, begin - start, end - begin) : at::Tensor();
    };
    pieces_.push_back({.parameter = i,
                       .span = span_of[parameter.group],
                       .first = begin - parameter.begin,
                       .begin = group.trainable ? group.trained_begin / sharding_.parts() + begin - start : 0,
                       .values = part(values),
                       .gradients = part(gradients),
                       .trainable = group.trainable});
  }
}

at::Tensor ParameterBuffer::values() const {
  TORCH_CHECK(!sharding_.divides_values(), "no rank has all values of divided parameters");
  return values_;
}

at::Tensor ParameterBuffer::gradients() const {
  TORCH_CHECK(!sharding_.divides_gradients(), "no rank has all gradients of divided parameters");
  return gradients_;
}

at::Tensor ParameterBuffer::OwnedValues(std::size_t group) const {
  const std::int64_t count = groups_[group].size() / sharding_.parts();
  if (sharding_.divides_values()) return values_.narrow(0, groups_[group].begin / sharding_.parts(), count);
  return GroupValues(group).narrow(0, sharding_.part() * count, count);
}

at::Tensor ParameterBuffer::OwnedGradients(std::size_t group) const {
  if (!gradients_.defined() || !groups_[group].trainable) return {};
  const std::int64_t count = groups_[group].size() / sharding_.parts();
  if (sharding_.divides_gradients())
    return gradients_.narrow(0, groups_[group].trained_begin / sharding_.parts(), count);
  return GroupGradients(group).narrow(0, sharding_.part() * count, count);
}

void ParameterBuffer::AllocateValues(std::size_t group) {
  GroupMemory& memory = memory_[group];
  if (!device().is_cpu()) return AllocateMemory(memory.values);
  memory.values_block = TakeMemory(memory.values, pool_);
}

void ParameterBuffer::FreeValues(std::size_t group) {
  const GroupMemory& memory = memory_[group];
  if (!device().is_cpu()) return FreeMemory(memory.values);
  GiveMemory(memory.values, memory.values_block, pool_);
}

void ParameterBuffer::AllocateGradients(std::size_t group) {
  GroupMemory& memory = memory_[group];
  if (device().is_cpu()) {
    memory.gradients_block = TakeMemory(memory.gradients, pool_);
  } else {
    AllocateMemory(memory.gradients);
  }
  GroupGradients(group).zero_();
}

void ParameterBuffer::FreeGradients(std::size_t group) {
  const GroupMemory& memory = memory_[group];
  if (!device().is_cpu()) return FreeMemory(memory.gradients);
  GiveMemory(memory.gradients, memory.gradients_block, pool_);
}

std::int64_t ParameterBuffer::ValueBytes() const {
  std::int64_t bytes = MemoryBytes(values_);
  if (!sharding_.divides_values()) return bytes;
  for (const GroupMemory& group : memory_) bytes += MemoryBytes(group.values);
  return bytes;
}

std::int64_t ParameterBuffer::GradientBytes() const {
  std::int64_t bytes = MemoryBytes(gradients_);
  if (!sharding_.divides_gradients()) return bytes;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].trainable) bytes += MemoryBytes(memory_[i].gradients);
  }
  return bytes;
}

}  // namespace millrace::engine
