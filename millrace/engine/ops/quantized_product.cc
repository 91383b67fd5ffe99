#include "millrace/engine/ops/quantized_product.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>
#include <vector>

#include "millrace/engine/device/built_with_cuda.h"
#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/ops/cpu/coded_product.h"
#include "millrace/engine/ops/cpu/gemm.h"
#include "millrace/engine/ops/cpu/row_product.h"
#include "millrace/engine/ops/cuda/quantized/coded_product.h"
#include "millrace/engine/quantized/quantize.h"

namespace millrace::engine::ops {
namespace {

/// Elements that are dequantized at once: 4 MiB, which a last-level cache holds beside the operands of the product.
constexpr std::int64_t kPanelElements = 1 << 20;
/// The fewest rows: with less, the product would run far below the processor's peak.
constexpr std::int64_t kLeastPanelRows = 64;

/// Calls `use(first, count, elements)` for the rows of the matrix, some at a time, as a dense float32 matrix.
template <class Use>
void ForEachPanel(const QuantizedRows& matrix, const AddToRows& add, Use&& use) {
  const std::int64_t most =
      std::min(matrix.rows(), std::max(kLeastPanelRows, kPanelElements / std::max<std::int64_t>(1, matrix.columns())));
  const at::Tensor panel = at::empty({most, matrix.columns()}, at::kFloat);
  float* elements = panel.data_ptr<float>();
  for (std::int64_t first = 0; first < matrix.rows(); first += most) {
    const std::int64_t count = std::min(most, matrix.rows() - first);
    constexpr std::int64_t kGrain = 1 << 14;  // elements; takes about 10 µs
    at::parallel_for(0, count, std::max<std::int64_t>(1, kGrain / matrix.columns()),
                     [&](std::int64_t begin, std::int64_t end) {
                       matrix.Dequantize(first + begin, end - begin, elements + begin * matrix.columns());
                     });
    if (add) add(first, panel.narrow(0, 0, count));
    use(first, count, elements);
  }
}

at::Tensor DenseFloats(const at::Tensor& x) { return x.to(at::kFloat).contiguous(); }

/// Returns the whole matrix on the GPU, of a type as `like`. `add` may be empty. One copy at a time is small beside the
/// activations of the tokens that make a GPU busy.
at::Tensor WholeOnGpu(const QuantizedRows& matrix, const at::Tensor& like, const AddToRows& add = {}) {
  if constexpr (kBuiltWithCuda) {
    const at::TensorOptions options = like.options();
    at::Tensor whole = cuda::Dequantized(matrix, 0, matrix.rows(), add ? options.dtype(at::kFloat) : options);
    if (add) add(0, whole);
    return whole.to(options.dtype());
  }
  TORCH_CHECK(false, "this program has no kernels for GPUs");
}

at::Tensor ProductOnGpu(const at::Tensor& x, const QuantizedRows& matrix, const at::Tensor& bias,
                        const AddToRows& add) {
  if constexpr (kBuiltWithCuda) {
    if (!add) {
      at::Tensor product = cuda::ProductOfCodes(x, matrix, bias);
      if (product.defined()) return product;
    }
  }
  const at::Tensor whole = WholeOnGpu(matrix, x, add).t();
  return bias.defined() ? at::addmm(bias, x, whole) : at::mm(x, whole);
}

/// Calls `work(begin, end)` for ranges of rows, on several threads. A row has `each` multiplications.
template <class Work>
void ForRowsInParallel(std::int64_t rows, std::int64_t each, Work&& work) {
  constexpr std::int64_t kGrain = 1 << 14;  // some microseconds of work, more than a thread's start costs
  at::parallel_for(0, rows, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, each)), work);
}

/// Some rows of a box: columns of a product with its transpose, from `output` on.
struct Strip {
  const QuantizedMatrix* matrix;
  MatrixBox box;  ///< of at most kCodedColumns rows
  std::int64_t output;
};

std::vector<Strip> StripsOf(const QuantizedRows& matrix) {
  std::vector<Strip> strips;
  std::int64_t output = 0;
  matrix.ForEachBox([&](const QuantizedMatrix& of, const MatrixBox& box) {
    for (std::int64_t row = 0; row < box.rows; row += cpu::kCodedColumns) {
      MatrixBox some = box;
      some.row += row;
      some.rows = std::min(cpu::kCodedColumns, box.rows - row);
      strips.push_back({&of, some, output + row});
    }
    output += box.rows;
  });
  return strips;
}

/// Returns whether the kernel of NF4 reads the box: blocks end with rows, and the box with blocks.
bool HasWholeBlocks(const QuantizedMatrix& matrix, const MatrixBox& box) {
  const std::int64_t block = matrix.nf4().block;
  return block >= cpu::kCodeLanes && std::has_single_bit(static_cast<std::uint64_t>(block)) &&
         matrix.columns() % block == 0 && box.column % block == 0 && box.columns % block == 0;
}

/// x · strip^T, by the kernels that read codes.
template <class Columns>
void MultiplyCodes(const Strip& strip, Columns weight, const at::Tensor& x, const float* bias, const at::Tensor& out) {
  cpu::CodedProduct<Columns>{.x = x.data_ptr<float>(),
                             .weight = weight,
                             .bias = bias,
                             .out = out.data_ptr<float>() + strip.output,
                             .out_stride = out.size(1),
                             .rows = x.size(0),
                             .columns = strip.box.rows,
                             .inner = x.size(1)}
      .Run();
}

/// x · strip^T, of any box: its numbers are written to memory first.
void MultiplyNumbers(const Strip& strip, const at::Tensor& x, const float* bias, const at::Tensor& out) {
  const std::int64_t rows = x.size(0), columns = strip.box.rows, inner = x.size(1);
  const auto numbers = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(columns * inner));
  const auto products = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(rows * columns));
  strip.matrix->Dequantize(strip.box, numbers.get(), inner);
  cpu::RowProduct<float>{.x = x.data_ptr<float>(),
                         .weight = numbers.get(),
                         .bias = bias,
                         .out = products.get(),
                         .rows = rows,
                         .columns = columns,
                         .inner = inner}
      .Run(0, columns);
  auto* const into = out.data_ptr<float>() + strip.output;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(products.get() + row * columns, columns, into + row * out.size(1));
  }
}

/// Product() where no row of x changes the bits of another one's.
at::Tensor ProductOfRowsAlone(const at::Tensor& x, const QuantizedRows& matrix, const at::Tensor& bias) {
  const at::Tensor left = DenseFloats(x), added = bias.defined() ? DenseFloats(bias) : bias;
  at::Tensor ordered;  // for NF4's kernel
  const std::vector<Strip> strips = StripsOf(matrix);
  const auto reads_nf4 = [](const Strip& strip) {
    return strip.matrix->kind() == Quantization::kNf4 && HasWholeBlocks(*strip.matrix, strip.box);
  };
  if (std::ranges::any_of(strips, reads_nf4)) {
    ordered = at::empty_like(left);
    ForRowsInParallel(left.size(0), left.size(1), [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t first = begin * left.size(1);
      cpu::OrderForNf4(left.data_ptr<float>() + first, end * left.size(1) - first, ordered.data_ptr<float>() + first);
    });
  }
  const at::Tensor out = at::empty({x.size(0), matrix.rows()}, at::kFloat);
  const auto* const biases = added.defined() ? added.data_ptr<float>() : nullptr;
  ForRowsInParallel(
      std::ssize(strips), x.size(0) * x.size(1) * cpu::kCodedColumns, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const Strip& strip = strips[static_cast<std::size_t>(i)];
          const QuantizedMatrix& of = *strip.matrix;
          const MatrixBox& box = strip.box;
          const float* const own_bias = biases != nullptr ? biases + strip.output : nullptr;
          const std::int64_t first = box.row * of.columns() + box.column;
          if (of.kind() == Quantization::kInt8) {
            const cpu::Int8Columns weight{.codes = reinterpret_cast<const std::int8_t*>(of.codes().data()) + first,
                                          .stride = of.columns(),
                                          .scales = of.row_factors().data() + box.row};
            MultiplyCodes(strip, weight, left, own_bias, out);
          } else if (of.kind() == Quantization::kFp8) {
            const cpu::Fp8Columns weight{.codes = of.codes().data() + first,
                                         .stride = of.columns(),
                                         .scales = of.row_factors().data() + box.row};
            MultiplyCodes(strip, weight, left, own_bias, out);
          } else if (reads_nf4(strip)) {
            const std::int64_t block = of.nf4().block;
            const cpu::Nf4Columns weight{.codes = of.codes().data() + first / 2,
                                         .stride = of.columns() / 2,
                                         .map = of.nf4().map.data(),
                                         .scales = of.block_scales().data() + first / block,
                                         .scales_stride = of.columns() / block,
                                         .block_bits = std::countr_zero(static_cast<std::uint64_t>(block))};
            MultiplyCodes(strip, weight, ordered, own_bias, out);
          } else {
            MultiplyNumbers(strip, left, own_bias, out);
          }
        }
      });
  return out.to(x.scalar_type());
}

}  // namespace

at::Tensor Product(const at::Tensor& x, const QuantizedRows& matrix, const at::Tensor& bias, const AddToRows& add) {
  TORCH_CHECK(x.dim() == 2 && x.size(1) == matrix.columns(), x.sizes(), " times ", matrix.columns(), " inputs");
  if (x.is_cpu() && MultipliesRowsAlone() && !add && x.numel() > 0) return ProductOfRowsAlone(x, matrix, bias);
  if (x.is_cuda()) return ProductOnGpu(x, matrix, bias, add);
  const at::Tensor left = DenseFloats(x), added = bias.defined() ? DenseFloats(bias) : bias;
  const at::Tensor out = at::empty({x.size(0), matrix.rows()}, at::kFloat);
  ForEachPanel(matrix, add, [&](std::int64_t first, std::int64_t count, const float* rows) {
    const cpu::ProductSize size{
        .rows = x.size(0), .columns = count, .inner = matrix.columns(), .out_stride = matrix.rows()};
    if (size.rows == 0) return;
    cpu::MultiplyByWeight({left.data_ptr<float>(), matrix.columns()}, {rows, matrix.columns(), /*transposed=*/true},
                          added.defined() ? added.data_ptr<float>() + first : nullptr, out.data_ptr<float>() + first,
                          size);
  });
  return out.to(x.scalar_type());
}

at::Tensor ProductWithTranspose(const at::Tensor& y, const QuantizedRows& matrix, const AddToRows& add) {
  TORCH_CHECK(y.dim() == 2 && y.size(1) == matrix.rows(), y.sizes(), " times ", matrix.rows(), " rows");
  if (y.is_cuda()) return at::mm(y, WholeOnGpu(matrix, y, add));
  const at::Tensor left = DenseFloats(y);
  const at::Tensor out = at::empty({y.size(0), matrix.columns()}, at::kFloat);
  ForEachPanel(matrix, add, [&](std::int64_t first, std::int64_t count, const float* rows) {
    const cpu::ProductSize size{.rows = y.size(0), .columns = matrix.columns(), .inner = count};
    if (size.rows == 0) return;
    cpu::Multiply<float>(1, {left.data_ptr<float>() + first, matrix.rows()}, {rows, matrix.columns()},
                         first == 0 ? 0.0F : 1.0F, out.data_ptr<float>(), size);
  });
  return out.to(y.scalar_type());
}

at::Tensor RowSquares(const QuantizedRows& matrix, const AddToRows& add, at::Device device) {
  if (!device.is_cpu()) return WholeOnGpu(matrix, at::empty({0}, at::device(device)), add).square_().sum(1);
  at::Tensor squares = at::empty({matrix.rows()}, at::kFloat);
  ForEachPanel(matrix, add, [&](std::int64_t first, std::int64_t count, float* rows) {
    const at::Tensor panel = at::from_blob(rows, {count, matrix.columns()}, at::kFloat);
    squares.narrow(0, first, count).copy_(panel.square().sum(1));
  });
  return squares;
}

std::shared_ptr<const QuantizedRows> InInt8(const at::Tensor& matrix) {
  const std::int64_t rows = matrix.size(0), columns = matrix.size(1);
  const auto size = static_cast<std::size_t>(columns);
  auto codes = std::make_shared<std::vector<std::uint8_t>>(static_cast<std::size_t>(rows) * size);
  QuantizedMatrix::Int8 int8{.codes = *codes, .scales = std::vector<float>(static_cast<std::size_t>(rows))};
  ForRowsInParallel(rows, columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const at::Tensor numbers = DenseFloats(matrix[row].detach());
      const auto at = static_cast<std::size_t>(row);
      int8.scales[at] = QuantizeInt8({numbers.data_ptr<float>(), size},
                                     {reinterpret_cast<std::int8_t*>(codes->data() + at * size), size});
    }
  });
  auto all = std::make_shared<QuantizedRows>();
  all->Append(std::make_shared<const QuantizedMatrix>(rows, columns, std::move(int8), codes),
              {.rows = rows, .columns = columns});
  return all;
}

at::Tensor Dequantized(const QuantizedRows& matrix) {
  at::Tensor whole = at::empty({matrix.rows(), matrix.columns()}, at::kFloat);
  matrix.Dequantize(0, matrix.rows(), whole.data_ptr<float>());
  return whole;
}

}  // namespace millrace::engine::ops
