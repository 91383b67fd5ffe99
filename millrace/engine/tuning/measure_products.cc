#include "millrace/engine/tuning/measure_products.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <array>
#include <vector>

#include "millrace/engine/ops/product.h"
#include "millrace/engine/tuning/speedup_threshold.h"

namespace millrace::engine::ops {
namespace {

constexpr std::array kMethods = {ProductMethod::kSgemm, ProductMethod::kMatmul, ProductMethod::kBlas};
/// Methods take turns, so that all of them meet the same load of the machine. The best time counts.
constexpr int kLeastRounds = 5, kMaxRounds = 40;
constexpr Duration kLongEnough = std::chrono::milliseconds(60);  // of a shape

/// Matrices as a step's product of this shape has them.
struct Operands {
  at::Tensor left, right, bias, out;

  explicit Operands(const ProductShape& shape) {
    const auto matrix = [](std::int64_t rows, std::int64_t columns, bool transposed) {
      return transposed ? at::randn({columns, rows}).t() : at::randn({rows, columns});
    };
    left = matrix(shape.rows, shape.inner, shape.left_transposed);
    right = matrix(shape.inner, shape.columns, shape.right_transposed);
    if (shape.result == ProductShape::Result::kSetWithBias) bias = at::randn({shape.columns});
    out = at::zeros({shape.rows, shape.columns});
  }
};

Duration TimeOf(const Operands& operands, const ProductShape& shape, ProductMethod method, Clock& clock) {
  const StepKernels kernels{.products = {{shape, method}}};
  const KernelScope scope(kernels);
  const TimePoint start = clock.Now();
  if (shape.result == ProductShape::Result::kAdd) {
    AddProduct(operands.out, operands.left, operands.right);
  } else {
    ProductInto(operands.out, operands.left, operands.right, operands.bias);
  }
  return clock.Now() - start;
}

ProductMethod FastestMethod(const ProductShape& shape, Clock& clock) {
  const at::NoGradGuard no_gradients;
  const Operands operands(shape);
  std::array<Duration, kMethods.size()> best;
  best.fill(Duration::max());
  for (const ProductMethod method : kMethods) TimeOf(operands, shape, method, clock);  // compiles, and warms caches
  Duration spent{};
  for (int round = 0; round < kMaxRounds && (round < kLeastRounds || spent < kLongEnough); ++round) {
    for (std::size_t i = 0; i < kMethods.size(); ++i) {
      const Duration took = TimeOf(operands, shape, kMethods[i], clock);
      best[i] = std::min(best[i], took);
      spent += took;
    }
  }
  const ProductMethod usual = DefaultMethod(shape);
  std::vector<double> seconds;
  for (const Duration time : best) seconds.push_back(SecondsOf(time));
  const auto faster = FasterThan(seconds[static_cast<std::size_t>(usual)], seconds);
  return faster ? kMethods[*faster] : usual;
}

}  // namespace

std::map<ProductShape, ProductMethod> MeasureProducts(const std::set<ProductShape>& shapes, Clock& clock,
                                                      const std::function<void()>& after_each) {
  std::map<ProductShape, ProductMethod> chosen;
  for (const ProductShape& shape : shapes) {
    const ProductMethod method = FastestMethod(shape, clock);
    if (method != DefaultMethod(shape)) chosen.emplace(shape, method);
    if (after_each) after_each();
  }
  return chosen;
}

std::string OneDnnVersion() {
  const dnnl_version_t& version = *dnnl_version();
  return fmt::format("{}.{}.{}", version.major, version.minor, version.patch);
}

}  // namespace millrace::engine::ops
