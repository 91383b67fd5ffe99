#include "millrace/engine/layers/embedding.h"

#include <gtest/gtest.h>

#include <cmath>

namespace millrace::engine {
namespace {

TEST(AddNoise, IsUniformWithinItsBounds) {
  const std::int64_t length = 64, columns = 50;
  const EmbeddingNoise noise{.alpha = 5, .rows = {.seed = 3, .step = 7, .first_sample = 8, .row_length = length}};
  const at::Tensor zeros = at::zeros({8 * length, columns});
  const at::Tensor drawn = AddNoise(zeros, noise) * std::sqrt(static_cast<double>(length * columns)) / noise.alpha;
  EXPECT_LE(drawn.abs().max().item<float>(), 1 + 1e-6);
  EXPECT_GT(drawn.abs().max().item<float>(), 0.999);
  EXPECT_NEAR(drawn.mean().item<float>(), 0, 4 / std::sqrt(3.0 * zeros.numel()));  // four standard errors
  EXPECT_NEAR(drawn.square().mean().item<float>(), 1.0 / 3, 4 * std::sqrt(4.0 / 45 / zeros.numel()));
  // Neither neighbours in a row nor the same places of two samples go together.
  const auto together = [](const at::Tensor& a, const at::Tensor& b) { return (3 * a * b).mean().item<float>(); };
  EXPECT_NEAR(together(drawn.narrow(1, 0, columns - 1), drawn.narrow(1, 1, columns - 1)), 0, 0.03);
  EXPECT_NEAR(together(drawn.narrow(0, 0, length), drawn.narrow(0, length, length)), 0, 0.08);
}

TEST(AddNoise, IsTheSameHoweverTheRowsAreCut) {
  const std::int64_t length = 6, columns = 7;
  const EmbeddingNoise noise{.alpha = 1, .rows = {.seed = 1, .step = 2, .first_sample = 4, .row_length = length}};
  const at::Tensor x = at::randn({4 * length, columns});
  const at::Tensor whole = AddNoise(x, noise);
  EmbeddingNoise part = noise;
  part.rows.first_sample = 6;  // another micro-batch
  EXPECT_TRUE(AddNoise(x.narrow(0, 2 * length, 2 * length), part).equal(whole.narrow(0, 2 * length, 2 * length)));
  part = noise;
  part.first_token = 9;  // a rank's share of the tokens
  EXPECT_TRUE(AddNoise(x.narrow(0, 9, 5), part).equal(whole.narrow(0, 9, 5)));
  part = noise;
  part.rows.step = 3;
  EXPECT_FALSE(AddNoise(x, part).equal(whole));
  EXPECT_TRUE(AddNoise(x, {}).is_same(x));
}

}  // namespace
}  // namespace millrace::engine
