#include "millrace/engine/ops/cuda/tensors/lt_product.h"

#include <ATen/cuda/CUDAContext.h>
#include <cublasLt.h>

#include <bit>
#include <map>
#include <mutex>
#include <utility>

namespace millrace::engine::ops::cuda {
namespace {

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(GpuAlgorithm::words));

void Check(cublasStatus_t status, const char* what) {
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLAS failed to multiply: ", what, ": ",
              cublasGetStatusString(status));
}

cudaDataType TypeOf(GpuNumber number) {
  switch (number) {
    case GpuNumber::kFloat:
    case GpuNumber::kTf32:
      return CUDA_R_32F;
    case GpuNumber::kBfloat16:
      return CUDA_R_16BF;
    case GpuNumber::kHalf:
      return CUDA_R_16F;
    case GpuNumber::kE4m3:
      return CUDA_R_8F_E4M3;
    case GpuNumber::kE5m2:
      return CUDA_R_8F_E5M2;
  }
  TORCH_CHECK(false, "no such number");
}
bool IsFp8(GpuNumber number) { return number == GpuNumber::kE4m3 || number == GpuNumber::kE5m2; }

/// A product as cuBLAS reads memory: by columns. So it sees the result's transpose, whose left factor is the right one.
struct Description {
  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t left{}, right{}, out{};
};

template <class T>
void Set(Description& of, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  Check(cublasLtMatmulDescSetAttribute(&of.operation, attribute, static_cast<const void*>(&value), sizeof(value)),
        "set an attribute");
}

#if CUBLAS_VERSION >= 120900
constexpr auto kLeftMode = CUBLASLT_MATMUL_DESC_A_SCALE_MODE, kRightMode = CUBLASLT_MATMUL_DESC_B_SCALE_MODE;
#else
constexpr cublasLtMatmulDescAttributes_t kLeftMode{}, kRightMode{};
#endif

/// Says how cuBLAS reads the factors of a side.
void SetScales(Description& of, cublasLtMatmulDescAttributes_t pointer,
               [[maybe_unused]] cublasLtMatmulDescAttributes_t mode, const GpuOperand& operand, const float* decode) {
  if (!IsFp8(operand.number)) return;
  Set(of, pointer, static_cast<const void*>(decode));
  if (operand.grain == Fp8Grain::kTensor) return;
#if CUBLAS_VERSION >= 120900
  const std::int32_t value = operand.grain == Fp8Grain::kLines ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                                               : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  Set(of, mode, value);
#else
  TORCH_CHECK(false, "block scaling of FP8 needs cuBLAS 12.9; this program was built with an older one");
#endif
}

/// Lays out a matrix [rows, columns] as cuBLAS sees it: its memory has the transpose.
void LayOut(cublasLtMatrixLayoutOpaque_t& layout, const GpuOperand& operand, std::int64_t rows, std::int64_t columns) {
  if (operand.transposed) std::swap(rows, columns);
  Check(cublasLtMatrixLayoutInit(&layout, TypeOf(operand.number), static_cast<std::uint64_t>(columns),
                                 static_cast<std::uint64_t>(rows), operand.stride),
        "lay out");
}

Description Describe(const GpuProduct& product, const LtOperands& operands) {
  Description of;
  const bool tf32 = product.left.number == GpuNumber::kTf32;
  Check(cublasLtMatmulDescInit(&of.operation, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "begin");
  const auto transpose = [](const GpuOperand& operand) { return operand.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  Set(of, CUBLASLT_MATMUL_DESC_TRANSA, transpose(product.right));
  Set(of, CUBLASLT_MATMUL_DESC_TRANSB, transpose(product.left));
  SetScales(of, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, kLeftMode, product.right, operands.right_decode);
  SetScales(of, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, kRightMode, product.left, operands.left_decode);
  const bool has_bias = product.result == ProductResult::kSetWithBias;
  if (has_bias || product.result == ProductResult::kAddWithSums) {
    // BGRADB sums the columns of the factor that cuBLAS calls B, which is our left matrix.
    Set(of, CUBLASLT_MATMUL_DESC_EPILOGUE, has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_BGRADB);
    Set(of, CUBLASLT_MATMUL_DESC_BIAS_POINTER, has_bias ? operands.bias : operands.sums);
    Set(of, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(product.out.number));
  }
  LayOut(of.left, product.right, product.inner, product.columns);
  LayOut(of.right, product.left, product.rows, product.inner);
  LayOut(of.out, product.out, product.rows, product.columns);
  return of;
}

}  // namespace

void StartProduct(const GpuProduct& product, const LtOperands& operands, const GpuAlgorithm& algorithm,
                  engine::cuda::Stream stream) {
  Description of = Describe(product, operands);
  const auto chosen = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm.words);
  const bool adds = product.result == ProductResult::kAdd || product.result == ProductResult::kAddWithSums;
  const float before = adds ? 1 : 0;
  Check(cublasLtMatmul(at::cuda::getCurrentCUDABlasLtHandle(), &of.operation, &operands.factor, operands.right,
                       &of.left, operands.left, &of.right, &before, operands.out, &of.out, operands.out, &of.out,
                       &chosen, at::cuda::getCUDABlasLtWorkspace(), at::cuda::getCUDABlasLtWorkspaceSize(), stream),
        "start");
}

std::vector<GpuAlgorithm> Algorithms(const GpuProduct& product, const LtOperands& operands, int most) {
  Description of = Describe(product, operands);
  cublasLtMatmulPreferenceOpaque_t preference{};
  Check(cublasLtMatmulPreferenceInit(&preference), "begin a preference");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    Check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)), "set a preference");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(at::cuda::getCUDABlasLtWorkspaceSize()));
  // Sums by atomic additions would have other bits each time.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_MASK & ~CUBLASLT_REDUCTION_SCHEME_INPLACE));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(attribute, static_cast<std::uint32_t>(kLtAlignmentBytes));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(at::cuda::getCurrentCUDABlasLtHandle(), &of.operation, &of.left, &of.right,
                                     &of.out, &of.out, &preference, most, found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  Check(status, "choose an algorithm");
  std::vector<GpuAlgorithm> algorithms;
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = found[static_cast<std::size_t>(i)];
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    algorithms.push_back({std::bit_cast<decltype(GpuAlgorithm::words)>(result.algo)});
  }
  return algorithms;
}

GpuAlgorithm UsualAlgorithm(const GpuProduct& product, const LtOperands& operands) {
  static std::mutex mutex;
  static std::map<std::pair<int, GpuProduct>, GpuAlgorithm> known;  // by device; guarded by the mutex
  const std::lock_guard lock(mutex);
  const std::pair key(static_cast<int>(at::cuda::current_device()), product);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  const std::vector<GpuAlgorithm> algorithms = Algorithms(product, operands, 1);
  TORCH_CHECK(!algorithms.empty(), "cuBLAS has no algorithm for a product of ", product.rows, " x ", product.inner,
              " x ", product.columns, " (", std::string(GpuNumberName(product.left.number)), ", ",
              std::string(GpuNumberName(product.right.number)), ")");
  return known.emplace(key, algorithms.front()).first->second;
}

std::string CublasVersion() { return std::to_string(cublasLtGetVersion()); }

}  // namespace millrace::engine::ops::cuda
