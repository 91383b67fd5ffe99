// Products by cuBLASLt, with an algorithm that was chosen before.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "millrace/engine/ops/common/gpu_product.h"
#include "millrace/engine/ops/cuda/kernels/kernels.h"

namespace millrace::engine::ops::cuda {

/// The memory of each matrix begins at a multiple of it.
inline constexpr std::size_t kLtAlignmentBytes = 16;
inline bool IsAligned(const at::Tensor& x) {
  return reinterpret_cast<std::uintptr_t>(x.data_ptr()) % kLtAlignmentBytes == 0;
}

/// The memory of a product.
struct LtOperands {
  const void *left = nullptr, *right = nullptr;
  void* out = nullptr;
  const void* bias = nullptr;  ///< of the result's type; with ProductResult::kSetWithBias
  void* sums = nullptr;        ///< [rows], of the result's type, are set; with ProductResult::kAddWithSums
  /// The factors of 8-bit matrices, in the layout that fp8_kernels.h gives for their grain.
  const float *left_decode = nullptr, *right_decode = nullptr;
  float factor = 1;  ///< of the product
};

/// Starts a product. Throws c10::Error if the algorithm is not one for it.
void StartProduct(const GpuProduct& product, const LtOperands& operands, const GpuAlgorithm& algorithm,
                  engine::cuda::Stream stream);
/// Returns at most `most` algorithms, in the order in which cuBLAS expects them to be fast; none if it has none. They
/// give the same bits each time, and are for any operands of such a product: cuBLAS sees only whether there are factors
/// and a bias.
std::vector<GpuAlgorithm> Algorithms(const GpuProduct& product, const LtOperands& operands, int most);
/// Returns the first of Algorithms(), which it remembers. Throws c10::Error if there is none. Thread-safe.
GpuAlgorithm UsualAlgorithm(const GpuProduct& product, const LtOperands& operands);

/// Returns the version of cuBLAS: "130001".
std::string CublasVersion();

}  // namespace millrace::engine::ops::cuda
