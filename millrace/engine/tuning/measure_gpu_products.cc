#include "millrace/engine/tuning/measure_gpu_products.h"

#include <ATen/core/grad_mode.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/ops/cuda/quantized/fp8_kernels.h"
#include "millrace/engine/ops/cuda/tensors/lt_product.h"
#include "millrace/engine/ops/cuda/tensors/product.h"
#include "millrace/engine/ops/cuda/tensors/tensors.h"
#include "millrace/engine/ops/cuda_ops.h"
#include "millrace/engine/tuning/speedup_threshold.h"

namespace millrace::engine::ops::cuda {
namespace {

constexpr int kMaxAlgorithms = 16;
/// Ways take turns, so that all of them meet the same clocks. The best time of a way counts.
constexpr int kRounds = 5, kProducts = 4;

bool IsFp8(const GpuOperand& operand) {
  return operand.number == GpuNumber::kE4m3 || operand.number == GpuNumber::kE5m2;
}
at::ScalarType TypeOf(const GpuOperand& operand) {
  return IsFp8(operand)                           ? at::kByte
         : operand.number == GpuNumber::kBfloat16 ? at::kBFloat16
         : operand.number == GpuNumber::kHalf     ? at::kHalf
                                                  : at::kFloat;
}

/// Returns a matrix [rows, columns] in memory as the operand says.
at::Tensor Matrix(const GpuOperand& operand, std::int64_t rows, std::int64_t columns, at::Device device) {
  if (operand.transposed) std::swap(rows, columns);
  const auto options = at::TensorOptions().dtype(TypeOf(operand)).device(device);
  at::Tensor memory = at::empty({rows, operand.stride}, options);
  if (IsFp8(operand)) {
    memory.random_(0, 0x40);  // codes of numbers below 2
  } else {
    memory.normal_();
  }
  memory = memory.narrow(1, 0, columns);
  return operand.transposed ? memory.t() : memory;
}
/// Returns factors of 1 for an 8-bit operand of `lines` lines.
at::Tensor Factors(const GpuOperand& operand, std::int64_t lines, std::int64_t summed, at::Device device) {
  if (!IsFp8(operand)) return {};
  const std::int64_t blocks = (lines + kernels::kFp8Block - 1) / kernels::kFp8Block;
  const std::int64_t count = operand.grain == Fp8Grain::kTensor  ? 1
                             : operand.grain == Fp8Grain::kLines ? kernels::Fp8SquareStride(summed) * lines
                                                                 : kernels::Fp8SquareStride(summed) * blocks;
  return at::ones({count}, at::TensorOptions().dtype(at::kFloat).device(device));
}

/// A product's matrices, as a step has them.
class Trial {
 public:
  Trial(const GpuProduct& product, at::Device device)
      : product_(product),
        left_(Matrix(product.left, product.rows, product.inner, device)),
        right_(Matrix(product.right, product.inner, product.columns, device)),
        out_(Matrix(product.out, product.rows, product.columns, device)),
        left_decode_(Factors(product.left, product.rows, product.inner, device)),
        right_decode_(Factors(product.right, product.columns, product.inner, device)) {
    if (product.result == ProductResult::kSetWithBias) bias_ = at::zeros({product.columns}, out_.options());
    if (product.result == ProductResult::kAddWithSums) sums_ = at::zeros({product.rows}, out_.options());
  }

  LtOperands operands() const {
    return {.left = left_.data_ptr(),
            .right = right_.data_ptr(),
            .out = out_.data_ptr(),
            .bias = MemoryOf(bias_),
            .sums = MemoryOf(sums_),
            .left_decode = MemoryOf<float>(left_decode_),
            .right_decode = MemoryOf<float>(right_decode_)};
  }
  /// Returns the result, which the next product replaces or adds to.
  at::Tensor Make(const GpuAlgorithm& algorithm) const {
    StartProduct(product_, operands(), algorithm, StreamOf(out_));
    return out_;
  }
  at::Tensor MakeAsUsual() const {
    if (IsFp8(product_.left)) return Make(UsualAlgorithm(product_, operands()));
    const bool sums = product_.result == ProductResult::kAddWithSums;
    if (sums) AddOrReturnRowSum({.value = {}, .gradient = sums_}, left_.t());
    if (sums || product_.result == ProductResult::kAdd) {
      AddProduct(out_, left_, right_, 1);
      return out_;
    }
    if (out_.scalar_type() == left_.scalar_type()) return Product(left_, right_, bias_);
    SetProduct(out_, left_, right_);
    return out_;
  }

  /// Returns whether the algorithm makes the product, with the same bits each time.
  bool IsRight(const GpuAlgorithm& algorithm) const {
    try {
      const at::Tensor want = ResultsOf([&] { return MakeAsUsual(); });
      const at::Tensor got = ResultsOf([&] { return Make(algorithm); });
      if (!got.equal(ResultsOf([&] { return Make(algorithm); }))) return false;
      constexpr double kMax = 1e-2;  // of bfloat16, relative
      return ((got - want).norm() / want.norm()).item<double>() < kMax;
    } catch (const c10::Error&) {  // what cuBLAS suggests may still not run
      return false;
    }
  }

 private:
  /// Returns all numbers that make() leaves, in float32, end to end.
  template <class MakeOne>
  at::Tensor ResultsOf(MakeOne&& make) const {
    at::Tensor out = out_, sums = sums_;
    out.zero_();
    if (sums.defined()) sums.zero_();
    const at::Tensor result = make().to(at::kFloat).flatten();
    return sums.defined() ? at::cat({result, sums}) : result.clone();
  }

  const GpuProduct& product_;
  const at::Tensor left_, right_, out_, left_decode_, right_decode_;
  at::Tensor bias_, sums_;
};

class Timer {
 public:
  Timer() {
    C10_CUDA_CHECK(cudaEventCreate(&begin_));
    C10_CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~Timer() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  /// Returns the seconds that the GPU takes for work().
  template <class Work>
  double Time(Work&& work) {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    C10_CUDA_CHECK(cudaEventRecord(begin_, stream));
    work();
    C10_CUDA_CHECK(cudaEventRecord(end_, stream));
    C10_CUDA_CHECK(cudaEventSynchronize(end_));
    float milliseconds = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_, end_));
    constexpr double kMilli = 1e-3;
    return static_cast<double>(milliseconds) * kMilli;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

std::optional<GpuAlgorithm> FasterAlgorithm(const GpuProduct& product, at::Device device) {
  const Trial trial(product, device);
  std::vector<GpuAlgorithm> algorithms = Algorithms(product, trial.operands(), kMaxAlgorithms);
  std::erase_if(algorithms, [&](const GpuAlgorithm& algorithm) { return !trial.IsRight(algorithm); });
  if (algorithms.empty()) return std::nullopt;
  const auto several = [](auto&& make) {
    for (int i = 0; i < kProducts; ++i) make();
  };
  Timer timer;
  double usual = INFINITY;
  std::vector<double> best(algorithms.size(), INFINITY);
  for (int round = 0; round < kRounds; ++round) {
    usual = std::min(usual, timer.Time([&] { several([&] { trial.MakeAsUsual(); }); }));
    for (std::size_t i = 0; i < algorithms.size(); ++i) {
      best[i] = std::min(best[i], timer.Time([&] { several([&] { trial.Make(algorithms[i]); }); }));
    }
  }
  const auto faster = FasterThan(usual, best);
  return faster ? std::optional(algorithms[*faster]) : std::nullopt;
}

}  // namespace

std::map<GpuProduct, GpuAlgorithm> MeasureGpuProducts(const std::set<GpuProduct>& products, at::Device device,
                                                      const std::function<void()>& after_each) {
  const at::NoGradGuard no_gradients;
  const c10::cuda::CUDAGuard guard(device);
  const StepKernels usual;
  const KernelScope scope(usual);
  std::map<GpuProduct, GpuAlgorithm> chosen;
  for (const GpuProduct& product : products) {
    if (const auto algorithm = FasterAlgorithm(product, device)) chosen.emplace(product, *algorithm);
    if (after_each) after_each();
  }
  return chosen;
}

}  // namespace millrace::engine::ops::cuda
