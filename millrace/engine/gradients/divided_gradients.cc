#include "millrace/engine/gradients/divided_gradients.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "millrace/engine/errors.h"
#include "millrace/engine/ops/cpu/kernels.h"

namespace millrace::engine {
namespace {

/// Elements that are summed as one. A change changes results.
constexpr std::int64_t kNormBlock = 65'536;

/// Returns the sum of squares of elements [begin, end) of the gradients.
double SquaresOf(const at::Tensor& gradients, std::int64_t begin, std::int64_t end) {
  if (!gradients.device().is_cpu()) {
    return gradients.narrow(0, begin, end - begin).to(at::kDouble).square().sum().item<double>();
  }
  const std::int64_t blocks = (end - begin + kNormBlock - 1) / kNormBlock;
  std::vector<double> partial(static_cast<std::size_t>(blocks));
  const float* data = gradients.data_ptr<float>();
  at::parallel_for(0, blocks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t block = first; block < last; ++block) {
      const std::int64_t from = begin + block * kNormBlock;
      partial[static_cast<std::size_t>(block)] =
          cpu::SumOfSquares(data + from, std::min(end, from + kNormBlock) - from);
    }
  });
  return std::accumulate(partial.begin(), partial.end(), 0.0);
}

}  // namespace

Status SumPartialGradients(ParameterBuffer& buffer, const TensorRanks& ranks) {
  if (ranks.size() == 1) return {};
  std::vector<at::Tensor> partial;
  for (const NamedParameter& parameter : buffer.parameters()) {
    if (parameter.partial_gradient) partial.push_back(parameter.gradient.view({-1}));
  }
  if (partial.empty()) return {};
  const at::NoGradGuard no_grad;
  at::Tensor flat = at::cat(partial);
  MR_TRY(ranks.group->AllReduce(flat));
  std::int64_t begin = 0;
  for (at::Tensor& gradient : partial) {
    gradient.copy_(flat.narrow(0, begin, gradient.numel()));
    begin += gradient.numel();
  }
  return {};
}

double GradientNorm(const ParameterBuffer& buffer, double scale, const TensorRanks& ranks) {
  const at::Tensor gradients = buffer.gradients();
  if (ranks.size() == 1) return std::sqrt(SquaresOf(gradients, 0, gradients.numel())) * scale;
  double squares = 0;
  for (const NamedParameter& parameter : buffer.parameters()) {
    if (parameter.slice.whole() && ranks.rank() != 0) continue;
    squares += SquaresOf(gradients, parameter.begin, parameter.begin + parameter.elements());
  }
  at::Tensor sum = at::scalar_tensor(squares, at::kDouble).view({1});
  ThrowIfFailed(ranks.group->AllReduce(sum));
  return std::sqrt(sum.item<double>()) * scale;
}

}  // namespace millrace::engine
