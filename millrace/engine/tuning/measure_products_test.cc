// How products are chosen, and that each way to make them gives the same.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <set>

#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/ops/cpu/gemm.h"
#include "millrace/engine/ops/product.h"
#include "millrace/engine/tuning/measure_products.h"

namespace millrace::engine::ops {
namespace {

using enum ProductMethod;
using Result = ProductShape::Result;

constexpr std::int64_t kRows = 7, kColumns = 10, kInner = 5;

at::Tensor RandomTensor(at::IntArrayRef shape, std::uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed));
}

at::Tensor MatrixOf(std::int64_t rows, std::int64_t columns, bool transposed, std::uint64_t seed) {
  return transposed ? RandomTensor({columns, rows}, seed).t() : RandomTensor({rows, columns}, seed);
}

TEST(ProductChoice, EveryMethodMakesTheProduct) {
  for (const ProductMethod method : {kSgemm, kMatmul, kBlas}) {
    for (const bool left : {false, true}) {
      for (const bool right : {false, true}) {
        for (const Result result : {Result::kSet, Result::kSetWithBias, Result::kAdd}) {
          SCOPED_TRACE(fmt::format("{}, transposed {} {}, result {}", ProductMethodName(method), left, right,
                                   static_cast<int>(result)));
          const StepKernels kernels{.products = {{{kRows, kColumns, kInner, left, right, result}, method}}};
          SeenProducts seen;
          const KernelScope scope(kernels, &seen);
          const at::Tensor a = MatrixOf(kRows, kInner, left, 1), b = MatrixOf(kInner, kColumns, right, 2);
          const at::Tensor bias = RandomTensor({kColumns}, 3);
          if (result == Result::kAdd) {
            // Some columns of a matrix; the others stay.
            for (const float scale : {1.0F, 0.5F}) {
              const at::Tensor whole = RandomTensor({kRows, kColumns + 4}, 4), before = whole.clone();
              AddProduct(whole.narrow(1, 2, kColumns), a, b, scale);
              before.narrow(1, 2, kColumns).add_(at::mm(a, b), scale);
              EXPECT_TRUE(at::allclose(whole, before, 1e-5, 1e-5)) << scale;
            }
          } else {
            const at::Tensor given = result == Result::kSetWithBias ? bias : at::Tensor();
            const at::Tensor want = given.defined() ? at::addmm(bias, a, b) : at::mm(a, b);
            EXPECT_TRUE(at::allclose(Product(a, b, given), want, 1e-5, 1e-5));
          }
          EXPECT_EQ(seen.on_cpu.size(), 1u);
          EXPECT_TRUE(seen.on_cpu.contains({kRows, kColumns, kInner, left, right, result}));
        }
      }
    }
  }
}

/// oneDNN makes products by default, except the gradients of small weights where it does not pack its operands.
TEST(ProductChoice, GradientsOfSmallWeightsAreMadeByTheBlas) {
  const auto adds = [](std::int64_t rows, std::int64_t columns) {
    return DefaultMethod({rows, columns, 1024, true, false, Result::kAdd});
  };
  EXPECT_EQ(adds(512, 384), cpu::MultipliesUnpacked(512, 384) ? kBlas : kSgemm);
  EXPECT_EQ(adds(2752, 512), kSgemm);
  EXPECT_EQ(adds(16, 512), kSgemm);  // an adapter's
  EXPECT_EQ(DefaultMethod({512, 384, 1024, true, false, Result::kSet}), kSgemm);
  EXPECT_EQ(DefaultMethod({512, 384, 1024, false, false, Result::kAdd}), kSgemm);
}

TEST(ProductChoice, ScopesAreNestedAndEnd) {
  const ProductShape shape{2, 3, 4};
  const StepKernels outer{.products = {{shape, kBlas}}}, inner{.plain = true};
  EXPECT_EQ(MethodFor(shape), kSgemm);
  {
    const KernelScope first(outer);
    EXPECT_EQ(MethodFor(shape), kBlas);
    EXPECT_FALSE(UsesPlainKernels());
    {
      const KernelScope second(inner);
      EXPECT_EQ(MethodFor(shape), kSgemm);
      EXPECT_TRUE(UsesPlainKernels());
    }
    EXPECT_EQ(MethodFor(shape), kBlas);
  }
  EXPECT_EQ(MethodFor(shape), kSgemm);
  EXPECT_FALSE(UsesPlainKernels());
}

TEST(ProductChoice, NamesRoundTrip) {
  for (const ProductMethod method : {kSgemm, kMatmul, kBlas}) {
    EXPECT_EQ(ParseProductMethod(ProductMethodName(method)), method);
  }
  EXPECT_FALSE(ParseProductMethod("ours"));
}

/// A clock on which products take as long as told: in turns those of sgemm, matmul and blas. It is read before and
/// after each.
class TurnsClock final : public Clock {
 public:
  explicit TurnsClock(std::array<int, 3> milliseconds) : milliseconds_(milliseconds) {}
  TimePoint Now() const override {
    const std::size_t reading = readings_++;
    if (reading % 2 == 1) now_ += std::chrono::milliseconds(milliseconds_[reading / 2 % 3]);
    return now_;
  }
  WallTime Wall() const override { return {}; }
  bool SleepUntil(TimePoint, std::stop_token) override { return true; }

 private:
  const std::array<int, 3> milliseconds_;
  mutable std::size_t readings_ = 0;
  mutable TimePoint now_{};
};

TEST(ProductChoice, TakesTheFastestIfItGainsEnough) {
  const ProductShape plain{4, 6, 8}, of_weight{4, 6, 8, false, true}, adds{4, 6, 8, true, false, Result::kAdd};
  const auto chosen = [](const ProductShape& shape, std::array<int, 3> milliseconds) {
    TurnsClock clock(milliseconds);
    int measured = 0;
    const auto all = MeasureProducts({shape}, clock, [&] { ++measured; });
    EXPECT_EQ(measured, 1);
    return all.contains(shape) ? std::optional(all.at(shape)) : std::nullopt;
  };
  EXPECT_EQ(chosen(plain, {100, 90, 80}), kBlas);
  EXPECT_EQ(chosen(plain, {100, 70, 80}), kMatmul);
  EXPECT_EQ(chosen(of_weight, {80, 100, 90}), kSgemm);
  EXPECT_EQ(chosen(adds, {100, 120, 90}), kBlas);
  // The default stays if nothing is faster, or not by enough.
  EXPECT_EQ(chosen(plain, {100, 100, 100}), std::nullopt);
  EXPECT_EQ(chosen(plain, {100, 99, 97}), std::nullopt);
  EXPECT_EQ(chosen(of_weight, {99, 100, 120}), std::nullopt);
}

}  // namespace
}  // namespace millrace::engine::ops
