// The choice of implementations for the ops of a training step: the fused or the plain ones, and how products are made.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "millrace/engine/ops/common/gpu_product.h"
#include "millrace/engine/ops/common/largest_values.h"
#include "millrace/engine/options/fp8_scaling.h"

namespace millrace::engine::ops {

/// The library that makes a product of float32. They differ in the order of sums, so in the last bits of results.
enum class ProductMethod {
  kSgemm,   ///< oneDNN's dnnl_sgemm
  kMatmul,  ///< a compiled matmul of oneDNN
  kBlas,    ///< what ATen calls: the BLAS that it was built with
};
/// "sgemm", "matmul", "blas"
std::string_view ProductMethodName(ProductMethod method);
std::optional<ProductMethod> ParseProductMethod(std::string_view name);

/// A product [rows, inner] · [inner, columns] of float32, as far as its speed depends on it.
struct ProductShape {
  std::int64_t rows = 0, columns = 0, inner = 0;
  bool left_transposed = false, right_transposed = false;  ///< of what is in memory
  using Result = ProductResult;
  Result result = Result::kSet;
  auto operator<=>(const ProductShape&) const = default;
};
/// Returns what makes a product of this shape on this processor if nothing was chosen.
ProductMethod DefaultMethod(const ProductShape& shape);

/// The implementations of a step. Default values: the fused ops, with default products.
struct StepKernels {
  /// The ops are their references: compositions of ATen's operations, as an eager PyTorch program calls them. Products
  /// are ATen's too.
  bool plain = false;
  std::map<ProductShape, ProductMethod> products;   ///< of shapes that are not here: DefaultMethod()
  std::map<GpuProduct, GpuAlgorithm> gpu_products;  ///< of products that are not here: what cuBLAS chooses
  /// On a GPU, the products of linear layers in bfloat16 round their inputs to 8 bits (ops/cuda/fp8).
  Fp8Scaling fp8 = Fp8Scaling::kNone;
  LargestValues* largest = nullptr;  ///< of the model's linear layers, for kDelayed. Borrowed.
  /// On a CPU, products of rows with a weight are those of cpu::RowProduct: the bits of a row do not depend on the
  /// other rows. For generation: fast for few rows, and up to a third slower than the others for hundreds.
  bool independent_rows = false;
};

/// The products of some passes.
struct SeenProducts {
  std::set<ProductShape> on_cpu;
  std::set<GpuProduct> on_gpu;
};

/// A scope in which ops that this thread calls use `kernels`, forward and backward. Borrows them. If `seen` is not
/// null, it gets all products that could be made in several ways. Scopes may be nested; the innermost counts. Worker
/// threads of an op use the defaults.
class KernelScope {
 public:
  explicit KernelScope(const StepKernels& kernels, SeenProducts* seen = nullptr);
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  struct Current {
    const StepKernels* kernels = nullptr;
    SeenProducts* seen = nullptr;
  };
  friend bool UsesPlainKernels();
  friend Fp8Scaling ScalingInFp8();
  friend LargestValues* LargestInFp8();
  friend bool MultipliesRowsAlone();
  friend ProductMethod MethodFor(const ProductShape& shape);
  friend bool ChoosesProducts();
  friend const GpuAlgorithm* AlgorithmFor(const GpuProduct& product);
  static thread_local Current current_;
  const Current outer_;
};

/// Returns whether ops on this thread use their references.
bool UsesPlainKernels();
/// Returns how linear layers on this thread multiply in FP8, where they can, and the values for kDelayed.
Fp8Scaling ScalingInFp8();
LargestValues* LargestInFp8();
/// Returns whether products on this thread have rows that do not depend on each other, where they can.
bool MultipliesRowsAlone();
/// Returns how this thread makes a product, and notes its shape if the scope asks for that.
ProductMethod MethodFor(const ProductShape& shape);
/// Returns whether products on a GPU are chosen on this thread, or noted for that.
bool ChoosesProducts();
/// Returns what makes a product on a GPU, and notes it if the scope asks for that. Null: cuBLAS chooses.
const GpuAlgorithm* AlgorithmFor(const GpuProduct& product);

}  // namespace millrace::engine::ops
