#include "millrace/engine/ops/cuda/fp8/fp8_linear.h"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cublasLt.h>

#include <compare>
#include <map>
#include <mutex>
#include <utility>

#include "millrace/engine/ops/cuda/fp8/fp8_kernels.h"
#include "millrace/engine/ops/cuda/tensors/tensors.h"

namespace millrace::engine::ops::cuda {
namespace {

using kernels::Fp8Format;
using kernels::Fp8ScaleMemory;

constexpr std::int64_t kMultiple = 16;         // of the sizes of cuBLAS's products in FP8
constexpr std::uint32_t kAlignmentBytes = 16;  // of their memory

bool IsAligned(const at::Tensor& x) { return reinterpret_cast<std::uintptr_t>(x.data_ptr()) % kAlignmentBytes == 0; }

/// Returns x, or a copy as the kernels read it.
at::Tensor Readable(const at::Tensor& x) {
  const at::Tensor dense = x.detach().contiguous();
  return IsAligned(dense) ? dense : dense.clone();
}

Fp8ScaleMemory* ScaleMemory(const at::Tensor& scale) { return static_cast<Fp8ScaleMemory*>(scale.data_ptr()); }

/// Returns the scale of x, whose `largest` is known. Casting sets the rest.
at::Tensor NewScale(const at::Tensor& x) {
  at::Tensor scale = NewLike(x, {sizeof(Fp8ScaleMemory)}, at::kByte);
  kernels::FindLargest(x.data_ptr(), x.numel(), ScaleMemory(scale), StreamOf(x));
  return scale;
}

/// A matrix, its transpose, or both.
struct Casts {
  Fp8Matrix rows, transposed;
};
enum class Which { kRows, kTransposed, kBoth };

/// Casts x [rows, columns]. `scale`: of NewScale().
Casts CastMatrix(const at::Tensor& x, Fp8Format format, const at::Tensor& scale, Which which) {
  Casts casts;
  if (which != Which::kTransposed) casts.rows = {NewLike(x, {x.size(0), x.size(1)}, at::kByte), scale, format};
  if (which != Which::kRows) casts.transposed = {NewLike(x, {x.size(1), x.size(0)}, at::kByte), scale, format};
  kernels::CastToFp8(format,
                     {.x = x.data_ptr(),
                      .codes = MemoryOf<std::uint8_t>(casts.rows.codes),
                      .transposed = MemoryOf<std::uint8_t>(casts.transposed.codes),
                      .scale = ScaleMemory(scale),
                      .rows = x.size(0),
                      .columns = x.size(1)},
                     StreamOf(x));
  return casts;
}

void CheckBlas(cublasStatus_t status, const char* what) {
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLAS failed to multiply in FP8: ", what, ": ",
              cublasGetStatusString(status));
}

cudaDataType Fp8TypeOf(Fp8Format format) { return format == Fp8Format::kE4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2; }

/// What cuBLAS's choice of an algorithm depends on. By columns, as cuBLAS counts: m are the columns of the result.
struct ProductKey {
  int device = 0;
  cudaDataType left{}, right{}, out{};
  std::int64_t m = 0, n = 0, k = 0, stride = 0;
  bool has_bias = false, adds = false;
  auto operator<=>(const ProductKey&) const = default;
};

struct ProductDescription {
  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t left{}, right{}, out{};
};

template <class T>
void SetAttribute(ProductDescription& product, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  CheckBlas(
      cublasLtMatmulDescSetAttribute(&product.operation, attribute, static_cast<const void*>(&value), sizeof(value)),
      "set an attribute");
}

/// The algorithms that cuBLAS has chosen, which takes it longer than to start one. Thread-safe.
class Algorithms {
 public:
  cublasLtMatmulAlgo_t For(const ProductKey& key, ProductDescription& product, std::size_t workspace_bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = chosen_.find(key);
    if (found != chosen_.end()) return found->second;
    cublasLtMatmulPreferenceOpaque_t preference{};
    CheckBlas(cublasLtMatmulPreferenceInit(&preference), "begin a preference");
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      CheckBlas(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)),
                "set a preference");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      set(attribute, kAlignmentBytes);
    }
    cublasLtMatmulHeuristicResult_t result{};
    int results = 0;
    CheckBlas(
        cublasLtMatmulAlgoGetHeuristic(at::cuda::getCurrentCUDABlasLtHandle(), &product.operation, &product.left,
                                       &product.right, &product.out, &product.out, &preference, 1, &result, &results),
        "choose an algorithm");
    TORCH_CHECK(results > 0, "cuBLAS has no algorithm for a product of ", key.n, " x ", key.k, " x ", key.m, " in FP8");
    return chosen_.emplace(key, result.algo).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<ProductKey, cublasLtMatmulAlgo_t> chosen_;  // guarded by mutex_
};

/// out [n, m] = rows [n, k] · the transpose of columns [m, k], plus `bias` [m] if that is defined; or out += that.
void Multiply(const Fp8Matrix& rows, const Fp8Matrix& columns, const at::Tensor& out, const at::Tensor& bias,
              bool adds) {
  static Algorithms algorithms;
  const std::int64_t m = columns.codes.size(0), n = rows.codes.size(0), k = rows.codes.size(1);
  TORCH_CHECK(columns.codes.size(1) == k && out.size(0) == n && out.size(1) == m && out.stride(1) == 1,
              rows.codes.sizes(), " times the transpose of ", columns.codes.sizes(), " into ", out.sizes());
  const ProductKey key{.device = out.device().index(),
                       .left = Fp8TypeOf(columns.format),
                       .right = Fp8TypeOf(rows.format),
                       .out = out.scalar_type() == at::kFloat ? CUDA_R_32F : CUDA_R_16BF,
                       .m = m,
                       .n = n,
                       .k = k,
                       .stride = out.stride(0),
                       .has_bias = bias.defined(),
                       .adds = adds};
  // cuBLAS reads memory by columns. So it sees out's transpose, and `columns` is its left factor.
  ProductDescription product;
  CheckBlas(cublasLtMatmulDescInit(&product.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "begin");
  SetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  SetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  SetAttribute(product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
               static_cast<const void*>(&ScaleMemory(columns.scale)->decode));
  SetAttribute(product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
               static_cast<const void*>(&ScaleMemory(rows.scale)->decode));
  if (bias.defined()) {
    SetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    SetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.data_ptr()));
    SetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
  }
  const auto unsigned_of = [](std::int64_t size) { return static_cast<std::uint64_t>(size); };
  CheckBlas(cublasLtMatrixLayoutInit(&product.left, key.left, unsigned_of(k), unsigned_of(m), k), "lay out");
  CheckBlas(cublasLtMatrixLayoutInit(&product.right, key.right, unsigned_of(k), unsigned_of(n), k), "lay out");
  CheckBlas(cublasLtMatrixLayoutInit(&product.out, key.out, unsigned_of(m), unsigned_of(n), key.stride), "lay out");
  const std::size_t workspace_bytes = at::cuda::getCUDABlasLtWorkspaceSize();
  const cublasLtMatmulAlgo_t algorithm = algorithms.For(key, product, workspace_bytes);
  const float one = 1, before = adds ? 1 : 0;
  CheckBlas(cublasLtMatmul(at::cuda::getCurrentCUDABlasLtHandle(), &product.operation, &one, columns.codes.data_ptr(),
                           &product.left, rows.codes.data_ptr(), &product.right, &before, out.data_ptr(), &product.out,
                           out.data_ptr(), &product.out, &algorithm, at::cuda::getCUDABlasLtWorkspace(),
                           workspace_bytes, StreamOf(out)),
            "start");
}

}  // namespace

bool Fp8Linear::Takes(const at::Tensor& x, const Weight& weight) {
  const at::Tensor& w = weight.value;
  const auto divides = [](std::int64_t size) { return size > 0 && size % kMultiple == 0; };
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && w.scalar_type() == at::kBFloat16 && divides(x.size(0)) &&
         divides(w.size(0)) && divides(w.size(1)) && (!weight.gradient.defined() || IsAligned(weight.gradient));
}

at::Tensor Fp8Linear::Forward(const at::Tensor& x_in, const at::Tensor& bias, bool keeps_input) {
  const c10::cuda::CUDAGuard guard(x_in.device());
  const at::Tensor x = Readable(x_in), w = Readable(weight_.value);
  Casts inputs = CastMatrix(x, Fp8Format::kE4m3, NewScale(x), keeps_input ? Which::kBoth : Which::kRows);
  weight_scale_ = NewScale(w);
  const Casts weights = CastMatrix(w, Fp8Format::kE4m3, weight_scale_, Which::kRows);
  at::Tensor out = NewLike(x, {x.size(0), w.size(0)}, at::kBFloat16);
  Multiply(inputs.rows, weights.rows, out, bias.defined() ? Readable(bias) : bias, /*adds=*/false);
  input_ = std::move(inputs.transposed);
  return out;
}

void Fp8Linear::CastGradient(const at::Tensor& dout_in) {
  const at::Tensor dout = Readable(dout_in);
  Casts casts =
      CastMatrix(dout, Fp8Format::kE5m2, NewScale(dout), weight_.gradient.defined() ? Which::kBoth : Which::kRows);
  gradient_ = std::move(casts.rows);
  gradient_transposed_ = std::move(casts.transposed);
}

at::Tensor Fp8Linear::InputGradient(const at::Tensor& dout) {
  const c10::cuda::CUDAGuard guard(dout.device());
  if (!gradient_.defined()) CastGradient(dout);
  const at::Tensor w = Readable(weight_.value);
  const Casts weights = CastMatrix(w, Fp8Format::kE4m3, weight_scale_, Which::kTransposed);
  at::Tensor dx = NewLike(dout, {dout.size(0), w.size(1)}, at::kBFloat16);
  Multiply(gradient_, weights.transposed, dx, {}, /*adds=*/false);
  gradient_ = {};
  return dx;
}

void Fp8Linear::AddGradient(const at::Tensor& x_in, const at::Tensor& dout) {
  const c10::cuda::CUDAGuard guard(dout.device());
  if (!gradient_transposed_.defined()) CastGradient(dout);
  if (!input_.defined()) {
    const at::Tensor x = Readable(x_in);
    input_ = CastMatrix(x, Fp8Format::kE4m3, NewScale(x), Which::kTransposed).transposed;
  }
  Multiply(gradient_transposed_, input_, weight_.gradient, {}, /*adds=*/true);
  gradient_transposed_ = {};
  input_ = {};
}

}  // namespace millrace::engine::ops::cuda
