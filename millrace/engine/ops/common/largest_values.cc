#include "millrace/engine/ops/common/largest_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace millrace::engine::ops {
namespace {

at::Tensor Zeros(std::size_t layers, at::Device device) {
  return at::zeros({static_cast<std::int64_t>(layers), static_cast<std::int64_t>(kFp8Tensors)},
                   at::TensorOptions().dtype(at::kFloat).device(device));
}

}  // namespace

LargestValues::LargestValues(std::size_t layers, at::Device device)
    : amax_(Zeros(layers, device)), seen_(Zeros(layers, device)), known_(layers) {}

at::Tensor LargestValues::At(const at::Tensor& table, std::size_t layer, Fp8Tensor tensor) {
  return table.select(0, static_cast<std::int64_t>(layer)).narrow(0, static_cast<std::int64_t>(tensor), 1);
}

std::vector<OfFp8Tensors> LargestValues::TakeSeen() {
  const at::Tensor on_host = seen_.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  seen_.zero_();
  std::vector<OfFp8Tensors> seen(layers());
  std::memcpy(seen.data(), on_host.data_ptr(), on_host.nbytes());
  return seen;
}

void LargestValues::SetAmax(const std::vector<OfFp8Tensors>& amaxes) {
  TORCH_CHECK(amaxes.size() == layers(), amaxes.size(), " values for ", layers(), " layers");
  at::Tensor on_host = Zeros(layers(), at::kCPU);
  std::memcpy(on_host.data_ptr(), amaxes.data(), on_host.nbytes());
  amax_.copy_(on_host);
  for (std::size_t i = 0; i < amaxes.size(); ++i) {
    std::ranges::transform(amaxes[i], known_[i].begin(), [](float amax) { return amax > 0; });
  }
}

float DecayedAmax(float amax, float seen) {
  constexpr double kSteps = 256;
  static const float kept = static_cast<float>(std::exp2(-1 / kSteps));
  if (!std::isfinite(seen) || seen <= 0) return amax;
  return std::max(seen, amax * kept);
}

}  // namespace millrace::engine::ops
