#include "millrace/serve/token_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>

#include "millrace/base/process/simd.h"

namespace millrace::serve {
namespace {

constexpr std::size_t kLanes = 8;  ///< of sums
constexpr double kLeastExponent = -700;

/// e^x for x in [-700, 0]: reduces x by multiples of ln 2, which are added to the exponent, and sums the series.
MR_INLINE double Exponential(double x) {
  constexpr double kShift = 6755399441055744.0;  // 1.5 · 2^52: adding it leaves the rounded integer in the low bits
  const double shifted = x * 1.4426950408889634 + kShift;
  const double n = shifted - kShift;
  const double r = (x - n * 0.6931471805598903) - n * 5.497923018708371e-14;  // ln 2 in two parts
  double sum = 1.0 / 6227020800;                                              // 1/13!
  sum = sum * r + 1.0 / 479001600;
  sum = sum * r + 1.0 / 39916800;
  sum = sum * r + 1.0 / 3628800;
  sum = sum * r + 1.0 / 362880;
  sum = sum * r + 1.0 / 40320;
  sum = sum * r + 1.0 / 5040;
  sum = sum * r + 1.0 / 720;
  sum = sum * r + 1.0 / 120;
  sum = sum * r + 1.0 / 24;
  sum = sum * r + 1.0 / 6;
  sum = sum * r + 0.5;
  sum = sum * r + 1;
  sum = sum * r + 1;
  const std::uint64_t exponent = std::bit_cast<std::uint64_t>(shifted) << 52;  // the shift's own bits fall off the top
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(sum) + exponent);
}

}  // namespace

/// Computes the weights of whole chunks, their sums, and their largest ones.
MR_SIMD static void WeighChunks(const float* logits, std::size_t chunks, std::size_t chunk, double most, double factor,
                                double* weights, double* sums, double* largest) {
  for (std::size_t c = 0; c < chunks; ++c) {
    double sum[kLanes] = {}, top[kLanes] = {};
    for (std::size_t i = 0; i < chunk; i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const double x = (static_cast<double>(logits[i + lane]) - most) * factor;
        const bool counts = x >= kLeastExponent;  // not for NaN
        const double weight = Exponential(counts ? x : 0);
        weights[i + lane] = counts ? weight : 0;
        sum[lane] += weights[i + lane];
        top[lane] = weights[i + lane] > top[lane] ? weights[i + lane] : top[lane];
      }
    }
    for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
      for (std::size_t lane = 0; lane < half; ++lane) {
        sum[lane] += sum[lane + half];
        top[lane] = top[lane + half] > top[lane] ? top[lane + half] : top[lane];
      }
    }
    sums[c] = sum[0];
    largest[c] = top[0];
    logits += chunk;
    weights += chunk;
  }
}

double TokenWeights::Compute(std::span<const float> logits, double most, double temperature) {
  count_ = logits.size();
  const std::size_t whole = count_ / kChunk, all = (count_ + kChunk - 1) / kChunk;
  weights_.resize(all * kChunk);
  sums_.resize(all);
  largest_.resize(all);
  constexpr double kMaxFactor = 1e300;  // finite, so that the likeliest token has 0 as its exponent
  const double factor = std::min(1 / temperature, kMaxFactor);
  WeighChunks(logits.data(), whole, kChunk, most, factor, weights_.data(), sums_.data(), largest_.data());
  if (whole < all) {
    float rest[kChunk];
    std::ranges::fill(rest, -INFINITY);
    std::ranges::copy(logits.subspan(whole * kChunk), rest);
    WeighChunks(rest, 1, kChunk, most, factor, weights_.data() + whole * kChunk, &sums_[whole], &largest_[whole]);
  }
  double total = 0;
  for (const double sum : sums_) total += sum;
  return total;
}

double TokenWeights::LeastOfTop(std::size_t count) {
  // The largest weights of `count` chunks are those of `count` tokens.
  if (count == 0 || count > chunks()) return 0;
  ranked_ = largest_;
  const auto last = ranked_.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(ranked_.begin(), last, ranked_.end(), std::greater());
  return *last;
}

void TokenWeights::Collect(double least, std::vector<TokenId>& tokens) const {
  for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
    if (largest_[chunk] < least) continue;
    for (const TokenId token : TokensOf(chunk)) {
      if (const double weight = (*this)[token]; weight > 0 && weight >= least) tokens.push_back(token);
    }
  }
}

}  // namespace millrace::serve
