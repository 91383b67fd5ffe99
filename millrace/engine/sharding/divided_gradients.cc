#include "millrace/engine/sharding/divided_gradients.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "millrace/engine/errors.h"
#include "millrace/engine/ops/cpu/kernels.h"
#include "millrace/engine/ops/cuda/tensors/optimizer.h"
#include "millrace/engine/ops/dispatch.h"

namespace millrace::engine {
namespace {

/// Elements that are summed as one. A change changes results.
constexpr std::int64_t kNormBlock = 65'536;

double SquaresOf(const at::Tensor& gradients) {
  const std::int64_t end = gradients.numel(), blocks = (end + kNormBlock - 1) / kNormBlock;
  std::vector<double> partial(static_cast<std::size_t>(blocks));
  const float* data = gradients.data_ptr<float>();
  at::parallel_for(0, blocks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t block = first; block < last; ++block) {
      const std::int64_t from = block * kNormBlock;
      partial[static_cast<std::size_t>(block)] =
          cpu::SumOfSquares(data + from, std::min(end, from + kNormBlock) - from);
    }
  });
  return std::accumulate(partial.begin(), partial.end(), 0.0);
}

/// Returns the sum for tensors on a GPU, which is read once.
double SquaresOnDevice(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> sums;
  for (const at::Tensor& gradients : tensors) {
    if constexpr (ops::kBuiltWithCuda) {
      if (ops::IsOnCuda(gradients)) {
        sums.push_back(ops::cuda::SumOfSquares(gradients));
        continue;
      }
    }
    sums.push_back(gradients.to(at::kDouble).square().sum());
  }
  return sums.empty() ? 0 : at::stack(sums).sum().item<double>();
}

/// Sums what tensor ranks hold alike, but computed from a part of the tokens or heads. Two tensor ranks may own
/// different parts of such a parameter, because other parameters of its group have different sizes on them. So each
/// rank puts its parts in their places among all elements, and the places of others stay zero. A parameter that ranks
/// divide into slices, each of which several ranks hold, has a place for each slice.
Status SumOverTensorRanks(ParameterBuffer& buffer, const StateRanks& ranks) {
  const std::vector<NamedParameter>& all = buffer.parameters();
  std::vector<std::int64_t> places(all.size(), -1);
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].partial_gradient || !all[i].trainable) continue;
    const int holders = all[i].Holders(ranks.tensor.size());
    places[i] = elements + ranks.tensor.rank() / holders * all[i].elements();
    elements += ranks.tensor.size() / holders * all[i].elements();
  }
  if (elements == 0 || ranks.tensor.size() == 1) return {};
  const at::Tensor flat = at::zeros({elements}, at::TensorOptions().dtype(at::kFloat).device(buffer.device()));
  const auto place = [&](const OwnedPiece& piece) {
    return flat.narrow(0, places[piece.parameter] + piece.first, piece.elements());
  };
  for (const OwnedPiece& piece : buffer.trained_pieces()) {
    if (places[piece.parameter] >= 0) place(piece).copy_(piece.gradients);
  }
  MR_TRY(ranks.stage->AllReduce(flat));
  for (const OwnedPiece& piece : buffer.trained_pieces()) {
    if (places[piece.parameter] >= 0) piece.gradients.copy_(place(piece));
  }
  return {};
}

/// Both stages divide a parameter that they share alike, because it has a group of its own.
Status SumOverTiedStages(ParameterBuffer& buffer, const StateRanks& ranks) {
  if (ranks.tied == nullptr) return {};
  for (const OwnedPiece& piece : buffer.trained_pieces()) {
    if (buffer.parameters()[piece.parameter].shared_by_stages) MR_TRY(ranks.tied->AllReduce(piece.gradients));
  }
  return {};
}

}  // namespace

Status SumPartialGradients(ParameterBuffer& buffer, const StateRanks& ranks) {
  const at::NoGradGuard no_grad;
  MR_TRY(SumOverTensorRanks(buffer, ranks));
  return SumOverTiedStages(buffer, ranks);
}

double GradientNorm(const ParameterBuffer& buffer, double scale, const StateRanks& ranks) {
  std::vector<at::Tensor> counted;
  if (std::ranges::all_of(buffer.parameters(), [&](const auto& parameter) { return ranks.Counts(parameter); })) {
    for (const OwnedSpan& span : buffer.owned_spans()) counted.push_back(span.gradients);
  } else {
    for (const OwnedPiece& piece : buffer.trained_pieces()) {
      if (ranks.Counts(buffer.parameters()[piece.parameter])) counted.push_back(piece.gradients);
    }
  }
  double squares = 0;
  if (buffer.device().is_cpu()) {
    for (const at::Tensor& gradients : counted) squares += SquaresOf(gradients);
  } else {
    squares = SquaresOnDevice(counted);
  }
  if (ranks.model == nullptr) return std::sqrt(squares) * scale;
  const at::Tensor sum = at::scalar_tensor(squares, at::kDouble).view({1});
  ThrowIfFailed(ranks.model->AllReduce(sum));
  return std::sqrt(sum.item<double>()) * scale;
}

}  // namespace millrace::engine
