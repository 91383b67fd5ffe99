#include "millrace/engine/ops/cuda/tensors/quantized.h"

#include <c10/cuda/CUDAStream.h>

#include "millrace/engine/ops/cuda/kernels/quantized_kernels.h"
#include "millrace/engine/ops/cuda/tensors/element.h"

namespace millrace::engine::ops::cuda {
namespace {

/// The codes and scales of a matrix on one GPU.
class CodesOnGpu final : public QuantizedMatrix::DeviceForm {
 public:
  CodesOnGpu(const QuantizedMatrix& matrix, at::Device device) : matrix_(matrix) {
    const auto bytes = [&](std::span<const std::uint8_t> from) {
      // The borrowed memory is only read.
      return at::from_blob(const_cast<std::uint8_t*>(from.data()), {static_cast<std::int64_t>(from.size())}, at::kByte)
          .to(device);
    };
    const auto floats = [&](std::span<const float> from) { return at::tensor(from, at::kFloat).to(device); };
    codes_ = bytes(matrix.codes());
    if (matrix.kind() == Quantization::kInt8) {
      scales_ = floats(matrix.int8().scales);
      return;
    }
    const QuantizedMatrix::Nf4& nf4 = matrix.nf4();
    map_ = floats(nf4.map);
    scales_ = bytes(nf4.scales);
    if (nf4.nested) {
      scale_map_ = floats(nf4.scale_map);
      scale_scales_ = floats(nf4.scale_scales);
    }
  }

  void Dequantize(const MatrixBox& box, const at::Tensor& out) const {
    const engine::cuda::CodedBox coded{.first = box.row * matrix_.columns() + box.column,
                                       .rows = box.rows,
                                       .columns = box.columns,
                                       .row_stride = matrix_.columns()};
    const auto stream = c10::cuda::getCurrentCUDAStream();
    if (matrix_.kind() == Quantization::kInt8) {
      return engine::cuda::DequantizeInt8(static_cast<const std::int8_t*>(codes_.data_ptr()), scales_.data_ptr<float>(),
                                          coded, ElementOf(out), out.data_ptr(), stream);
    }
    const QuantizedMatrix::Nf4& nf4 = matrix_.nf4();
    const engine::cuda::Nf4Codes codes{
        .codes = codes_.data_ptr<std::uint8_t>(),
        .map = map_.data_ptr<float>(),
        .block = nf4.block,
        .scales = nf4.nested ? scales_.data_ptr<std::uint8_t>() : nullptr,
        .plain_scales = nf4.nested ? nullptr : static_cast<const float*>(scales_.data_ptr()),
        .scale_map = nf4.nested ? scale_map_.data_ptr<float>() : nullptr,
        .scale_scales = nf4.nested ? scale_scales_.data_ptr<float>() : nullptr,
        .scale_block = nf4.scale_block,
        .scale_offset = nf4.scale_offset};
    engine::cuda::DequantizeNf4(codes, coded, ElementOf(out), out.data_ptr(), stream);
  }

 private:
  const QuantizedMatrix& matrix_;  ///< which owns this
  at::Tensor codes_, scales_, map_, scale_map_, scale_scales_;
};

const CodesOnGpu& OnGpu(const QuantizedMatrix& matrix, at::Device device) {
  return static_cast<const CodesOnGpu&>(matrix.OnDevice([&] { return std::make_unique<CodesOnGpu>(matrix, device); }));
}

}  // namespace

at::Tensor Dequantized(const QuantizedRows& matrix, std::int64_t first, std::int64_t count,
                       const at::TensorOptions& options) {
  at::Tensor out = at::empty({count, matrix.columns()}, options);
  std::int64_t done = 0;
  matrix.Rows(first, count).ForEachBox([&](const QuantizedMatrix& part, const MatrixBox& box) {
    OnGpu(part, options.device()).Dequantize(box, out.narrow(0, done, box.rows));
    done += box.rows;
  });
  return out;
}

}  // namespace millrace::engine::ops::cuda
