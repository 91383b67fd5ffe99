#include "millrace/engine/parameters/initial_values.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <numbers>

#include "millrace/base/hash/random.h"
#include "millrace/engine/device/built_with_cuda.h"
#include "millrace/engine/ops/cuda/tensors/initial_values.h"

namespace millrace::engine {
namespace {

/// Uniform in (0, 1].
double UnitInterval(std::uint64_t word) { return (static_cast<double>(word >> 11) + 1) * 0x1p-53; }

}  // namespace

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

}  // namespace millrace::engine
