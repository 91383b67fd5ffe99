#include "millrace/engine/ops/quantized/quantized_product.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "millrace/engine/ops/cpu/gemm.h"

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

}  // namespace

at::Tensor Product(const at::Tensor& x, const QuantizedRows& matrix, const at::Tensor& bias, const AddToRows& add) {
  TORCH_CHECK(x.dim() == 2 && x.size(1) == matrix.columns(), x.sizes(), " times ", matrix.columns(), " inputs");
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

at::Tensor RowSquares(const QuantizedRows& matrix, const AddToRows& add) {
  at::Tensor squares = at::empty({matrix.rows()}, at::kFloat);
  ForEachPanel(matrix, add, [&](std::int64_t first, std::int64_t count, float* rows) {
    const at::Tensor panel = at::from_blob(rows, {count, matrix.columns()}, at::kFloat);
    squares.narrow(0, first, count).copy_(panel.square().sum(1));
  });
  return squares;
}

at::Tensor Dequantized(const QuantizedRows& matrix) {
  at::Tensor whole = at::empty({matrix.rows(), matrix.columns()}, at::kFloat);
  matrix.Dequantize(0, matrix.rows(), whole.data_ptr<float>());
  return whole;
}

}  // namespace millrace::engine::ops
