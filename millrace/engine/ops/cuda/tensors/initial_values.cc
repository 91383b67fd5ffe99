#include "millrace/engine/ops/cuda/tensors/initial_values.h"

#include <c10/cuda/CUDAStream.h>

#include "millrace/engine/ops/cuda/kernels/kernels.h"

namespace millrace::engine::ops::cuda {

void FillNormal(std::uint64_t key, double stddev, std::int64_t first, const at::Tensor& run) {
  engine::cuda::FillNormal(key, stddev, first, run.data_ptr<float>(), run.numel(), c10::cuda::getCurrentCUDAStream());
}

void FillUniform(std::uint64_t key, double stddev, std::int64_t first, const at::Tensor& run) {
  engine::cuda::FillUniform(key, stddev, first, run.data_ptr<float>(), run.numel(), c10::cuda::getCurrentCUDAStream());
}

}  // namespace millrace::engine::ops::cuda
