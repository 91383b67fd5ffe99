#include "millrace/engine/ops/common/step_kernels.h"

#include <algorithm>
#include <array>

#include "millrace/engine/ops/cpu/gemm.h"
#include "millrace/engine/options/named.h"

namespace millrace::engine::ops {
namespace {

constexpr std::array<std::string_view, 3> kMethodNames = {"sgemm", "matmul", "blas"};

/// The least rows and columns of which the BLAS adds products faster than oneDNN does. The gradients of adapters have
/// fewer, and either library is the faster one for some of them.
constexpr std::int64_t kLeastOfBlas = 128;

/// Returns whether the product adds to the gradient of a small weight: dout^T · x.
bool AddsToSmallWeight(const ProductShape& shape) {
  return shape.left_transposed && !shape.right_transposed && shape.result == ProductShape::Result::kAdd &&
         std::min(shape.rows, shape.columns) >= kLeastOfBlas && cpu::MultipliesUnpacked(shape.rows, shape.columns);
}

}  // namespace

thread_local KernelScope::Current KernelScope::current_;

std::string_view ProductMethodName(ProductMethod method) { return NameOf(kMethodNames, method); }

std::optional<ProductMethod> ParseProductMethod(std::string_view name) {
  return Named<ProductMethod>(kMethodNames, name);
}

ProductMethod DefaultMethod(const ProductShape& shape) {
  if (AddsToSmallWeight(shape)) return ProductMethod::kBlas;
  // A compiled matmul reads a weight's transpose faster, and adds the bias where it makes the sums.
  const bool of_weight = shape.right_transposed || shape.result == ProductShape::Result::kSetWithBias;
  return of_weight && shape.result != ProductShape::Result::kAdd ? ProductMethod::kMatmul : ProductMethod::kSgemm;
}

KernelScope::KernelScope(const StepKernels& kernels, SeenProducts* seen) : outer_(current_) {
  current_ = {&kernels, seen};
}

KernelScope::~KernelScope() { current_ = outer_; }

bool UsesPlainKernels() { return KernelScope::current_.kernels != nullptr && KernelScope::current_.kernels->plain; }

Fp8Scaling ScalingInFp8() {
  return KernelScope::current_.kernels != nullptr ? KernelScope::current_.kernels->fp8 : Fp8Scaling::kNone;
}

LargestValues* LargestInFp8() {
  return KernelScope::current_.kernels != nullptr ? KernelScope::current_.kernels->largest : nullptr;
}

bool MultipliesRowsAlone() {
  return KernelScope::current_.kernels != nullptr && KernelScope::current_.kernels->independent_rows;
}

ProductMethod MethodFor(const ProductShape& shape) {
  const KernelScope::Current& current = KernelScope::current_;
  if (current.kernels == nullptr) return DefaultMethod(shape);
  if (current.seen != nullptr) current.seen->on_cpu.insert(shape);
  const auto found = current.kernels->products.find(shape);
  return found != current.kernels->products.end() ? found->second : DefaultMethod(shape);
}

bool ChoosesProducts() {
  const KernelScope::Current& current = KernelScope::current_;
  return current.kernels != nullptr && (current.seen != nullptr || !current.kernels->gpu_products.empty());
}

const GpuAlgorithm* AlgorithmFor(const GpuProduct& product) {
  const KernelScope::Current& current = KernelScope::current_;
  if (current.kernels == nullptr) return nullptr;
  if (current.seen != nullptr) current.seen->on_gpu.insert(product);
  const auto found = current.kernels->gpu_products.find(product);
  return found != current.kernels->gpu_products.end() ? &found->second : nullptr;
}

}  // namespace millrace::engine::ops
