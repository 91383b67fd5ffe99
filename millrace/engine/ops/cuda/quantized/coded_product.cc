#include "millrace/engine/ops/cuda/quantized/coded_product.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <vector>

#include "millrace/engine/ops/cuda/quantized/coded_kernels.h"
#include "millrace/engine/ops/cuda/tensors/element.h"
#include "millrace/engine/ops/cuda/tensors/tensors.h"

namespace millrace::engine::ops::cuda {
namespace {

/// The most rows that are multiplied by codes. With more, a product is bound by arithmetic, and to write the numbers
/// for cuBLAS costs little beside it.
constexpr std::int64_t kMaxRows = 2 * kernels::kTileRows;

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
    if (matrix.kind() != Quantization::kNf4) {
      scales_ = floats(matrix.row_factors());
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

  /// Returns the numbers of a box, as kernels see it.
  kernels::CodedBox BoxOf(const MatrixBox& box) const {
    return {.first = box.row * matrix_.columns() + box.column,
            .rows = box.rows,
            .columns = box.columns,
            .row_stride = matrix_.columns()};
  }

  /// Returns the codes, as kernels see them.
  kernels::Codes codes() const {
    if (matrix_.kind() == Quantization::kInt8) {
      return kernels::Int8Codes{.codes = static_cast<const std::int8_t*>(codes_.data_ptr()),
                                .scales = scales_.data_ptr<float>()};
    }
    if (matrix_.kind() == Quantization::kFp8) {
      return kernels::Fp8Codes{.codes = codes_.data_ptr<std::uint8_t>(), .scales = scales_.data_ptr<float>()};
    }
    const QuantizedMatrix::Nf4& nf4 = matrix_.nf4();
    return kernels::Nf4Codes{.codes = codes_.data_ptr<std::uint8_t>(),
                             .map = map_.data_ptr<float>(),
                             .block = nf4.block,
                             .scales = nf4.nested ? scales_.data_ptr<std::uint8_t>() : nullptr,
                             .plain_scales = nf4.nested ? nullptr : static_cast<const float*>(scales_.data_ptr()),
                             .scale_map = nf4.nested ? scale_map_.data_ptr<float>() : nullptr,
                             .scale_scales = nf4.nested ? scale_scales_.data_ptr<float>() : nullptr,
                             .scale_block = nf4.scale_block,
                             .scale_offset = nf4.scale_offset};
  }

 private:
  const QuantizedMatrix& matrix_;  ///< which owns this
  at::Tensor codes_, scales_, map_, scale_map_, scale_scales_;
};

const CodesOnGpu& OnGpu(const QuantizedMatrix& matrix, at::Device device) {
  return static_cast<const CodesOnGpu&>(matrix.OnDevice([&] { return std::make_unique<CodesOnGpu>(matrix, device); }));
}

/// A box of codes and its part of a product.
struct BoxProduct {
  kernels::Codes codes;
  kernels::CodedProductArgs args;
};

bool FitsKernels(kernels::Element element, const BoxProduct& product) {
  return product.args.rows <= kernels::kMaxCodedRows ? kernels::FitsCodedRows(element, product.codes, product.args)
                                                     : kernels::FitsCodedTiles(element, product.codes, product.args);
}

}  // namespace

at::Tensor Dequantized(const QuantizedRows& matrix, std::int64_t first, std::int64_t count,
                       const at::TensorOptions& options) {
  at::Tensor out = at::empty({count, matrix.columns()}, options);
  std::int64_t done = 0;
  matrix.Rows(first, count).ForEachBox([&](const QuantizedMatrix& part, const MatrixBox& box) {
    const CodesOnGpu& on_gpu = OnGpu(part, options.device());
    const at::Tensor into = out.narrow(0, done, box.rows);
    kernels::Dequantize(on_gpu.codes(), on_gpu.BoxOf(box), ElementOf(into), into.data_ptr(), StreamOf(into));
    done += box.rows;
  });
  return out;
}

at::Tensor ProductOfCodes(const at::Tensor& x_in, const QuantizedRows& matrix, const at::Tensor& bias_in) {
  const std::int64_t rows = x_in.size(0);
  if (rows == 0 || rows > kMaxRows) return {};
  const c10::cuda::CUDAGuard guard(x_in.device());
  const at::Tensor x = x_in.stride(1) == 1 ? x_in : x_in.contiguous();
  const at::Tensor bias = bias_in.defined() ? bias_in.to(x.scalar_type()).contiguous() : bias_in;
  at::Tensor out = NewLike(x, {rows, matrix.rows()}, x.scalar_type());
  const kernels::Element element = ElementOf(x);
  std::vector<BoxProduct> products;
  std::int64_t done = 0;
  matrix.ForEachBox([&](const QuantizedMatrix& part, const MatrixBox& box) {
    const CodesOnGpu& on_gpu = OnGpu(part, x.device());
    products.push_back({on_gpu.codes(),
                        {.x = x.data_ptr(),
                         .bias = bias.defined() ? bias.narrow(0, done, box.rows).data_ptr() : nullptr,
                         .out = out.narrow(1, done, box.rows).data_ptr(),
                         .rows = rows,
                         .x_stride = x.stride(0),
                         .out_stride = out.size(1),
                         .box = on_gpu.BoxOf(box)}});
    done += box.rows;
  });
  const auto fits = [&](const BoxProduct& product) { return FitsKernels(element, product); };
  if (!std::ranges::all_of(products, fits)) return {};
  for (const BoxProduct& product : products) {
    if (rows <= kernels::kMaxCodedRows) {
      kernels::MultiplyCodedRows(element, product.codes, product.args, StreamOf(x));
      continue;
    }
    const std::int64_t floats = kernels::CodedTilesScratch(product.args);
    const at::Tensor scratch = floats == 0 ? at::Tensor() : NewLike(x, {floats}, at::kFloat);
    kernels::MultiplyCodedTiles(element, product.codes, product.args, MemoryOf<float>(scratch), StreamOf(x));
  }
  return out;
}

}  // namespace millrace::engine::ops::cuda
