#include "millrace/engine/ops/product.h"

#include <ATen/core/grad_mode.h>

#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/ops/cpu/row_product.h"
#include "millrace/engine/ops/cuda/tensors/product.h"
#include "millrace/engine/ops/cuda_ops.h"

namespace millrace::engine::ops {
namespace {

/// Returns `x`, or a copy if neither its rows nor its columns are dense.
at::Tensor WithDenseLines(const at::Tensor& x) {
  const bool rows = x.stride(1) == 1 && x.stride(0) >= x.size(1),
             columns = x.stride(0) == 1 && x.stride(1) >= x.size(0);
  return rows || columns ? x : x.contiguous();
}

/// Returns a float32 copy. That of a transpose is a transpose.
at::Tensor Widened(const at::Tensor& x) { return x.to(at::kFloat); }

/// Returns `x`, or a copy, as cpu::Multiply() takes it on this processor.
at::Tensor Multiplied(const at::Tensor& x) {
  return WithDenseLines(x.scalar_type() == at::kBFloat16 && !cpu::MultipliesBf16() ? Widened(x) : x);
}

template <class T>
cpu::Matrix<T> Read(const at::Tensor& x) {
  const auto* data = static_cast<const T*>(x.data_ptr());
  if (x.stride(1) == 1 && x.stride(0) >= x.size(1)) return {data, x.stride(0)};
  return {data, x.stride(1), /*transposed=*/true};
}

cpu::ProductSize SizeOf(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && c.size(0) == a.size(0) &&
                  c.size(1) == b.size(1) && a.scalar_type() == b.scalar_type(),
              a.sizes(), " times ", b.sizes(), " into ", c.sizes());
  return {a.size(0), b.size(1), a.size(1)};
}

/// Makes a product of float32: c = a · b + bias, or c += scale · a · b. c has dense rows.
void Make(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, bool adds,
          float scale = 1) {
  cpu::ProductSize size = SizeOf(c, a, b);
  size.out_stride = c.stride(0);
  const at::Tensor left = WithDenseLines(a), right = WithDenseLines(b);
  const cpu::Matrix<float> x = Read<float>(left), w = Read<float>(right);
  using Result = ProductShape::Result;
  const Result result = adds ? Result::kAdd : bias.defined() ? Result::kSetWithBias : Result::kSet;
  auto* const into = c.data_ptr<float>();
  switch (MethodFor({size.rows, size.columns, size.inner, x.transposed, w.transposed, result})) {
    case ProductMethod::kMatmul:
      if (scale != 1) break;  // compiled products have no factor
      return cpu::MultiplyByWeight(x, w, Data<float>(bias), into, size, adds);
    case ProductMethod::kBlas: {
      const at::NoGradGuard no_gradients;
      at::Tensor out = c;
      if (result == Result::kSet) {
        at::mm_out(out, left, right);
      } else {
        at::addmm_out(out, adds ? c : bias, left, right, 1, scale);
      }
      return;
    }
    case ProductMethod::kSgemm:
      break;
  }
  if (bias.defined()) c.copy_(bias.expand_as(c));
  cpu::Multiply(scale, x, w, result == Result::kSet ? 0 : 1, into, size);
}

/// c = a · b + bias, in float32.
void MultiplyInto(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {}) {
  if (c.numel() > 0) Make(c, a, b, bias, /*adds=*/false);
}

/// Returns whether a · b is one of rows with a weight in memory that cpu::RowProduct reads.
bool IsRowProduct(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  return HasFused(a) && b.scalar_type() == a.scalar_type() && a.is_contiguous() && b.t().is_contiguous() &&
         a.size(1) > 0 && (!bias.defined() || (bias.is_contiguous() && bias.scalar_type() == a.scalar_type()));
}

at::Tensor MultiplyRowsAlone(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  at::Tensor c = at::empty({a.size(0), b.size(1)}, a.options());
  DispatchType(a, [&]<class T>(T) {
    const cpu::RowProduct<T> product{.x = Data<T>(a),
                                     .weight = static_cast<const T*>(b.data_ptr()),
                                     .bias = Data<T>(bias),
                                     .out = Data<T>(c),
                                     .rows = a.size(0),
                                     .columns = b.size(1),
                                     .inner = a.size(1)};
    const std::int64_t parts = (product.columns + cpu::kProductColumns - 1) / cpu::kProductColumns;
    ParallelRows(parts, product.rows * product.inner * cpu::kProductColumns, [&](cpu::Rows part) {
      product.Run(part.begin * cpu::kProductColumns, std::min(part.end * cpu::kProductColumns, product.columns));
    });
  });
  return c;
}

}  // namespace

at::Tensor Product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  if constexpr (kBuiltWithCuda) {
    if (a.is_cuda()) return cuda::Product(a, b, bias);
  }
  if (MultipliesRowsAlone() && IsRowProduct(a, b, bias)) return MultiplyRowsAlone(a, b, bias);
  if (a.scalar_type() == at::kBFloat16) {
    if (!cpu::MultipliesBf16()) {
      return Product(Widened(a), Widened(b), bias.defined() ? Widened(bias) : bias).to(at::kBFloat16);
    }
    // ATen multiplies bfloat16 with oneDNN too, and rounds the sums where they are made.
    return bias.defined() ? at::addmm(bias, a, b) : at::mm(a, b);
  }
  at::Tensor c = at::empty({a.size(0), b.size(1)}, a.options());
  MultiplyInto(c, a, b, bias);
  return c;
}

void ProductInto(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  if (a.is_cuda()) {
    at::Tensor into = c;
    if (bias.defined()) {
      at::addmm_out(into, bias, a, b);
    } else {
      at::mm_out(into, a, b);
    }
    return;
  }
  if (a.scalar_type() == at::kBFloat16) {
    at::Tensor into = c;
    if (cpu::MultipliesBf16()) {
      at::mm_out(into, a, b);
    } else {
      into.copy_(Product(Widened(a), Widened(b)));
    }
  } else {
    MultiplyInto(c, a, b, bias);
  }
}

void AddProduct(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, float scale) {
  cpu::ProductSize size = SizeOf(c, a, b);
  // oneDNN refuses a sum of no products: the weights' gradient of a head that no token reaches.
  if (size.rows == 0 || size.columns == 0 || size.inner == 0) return;
  TORCH_CHECK(c.scalar_type() == at::kFloat && c.stride(1) == 1 && c.stride(0) >= c.size(1), "c has dense rows");
  if constexpr (kBuiltWithCuda) {
    if (a.is_cuda()) return cuda::AddProduct(c, WithDenseLines(a), WithDenseLines(b), scale);
  }
  const at::Tensor left = Multiplied(a), right = Multiplied(b);
  if (left.scalar_type() == at::kFloat) {
    Make(c, left, right, {}, /*adds=*/true, scale);
  } else {
    size.out_stride = c.stride(0);
    cpu::Multiply(scale, Read<cpu::Bf16>(left), Read<cpu::Bf16>(right), 1, c.data_ptr<float>(), size);
  }
}

at::Tensor AddOrReturn(const Weight& weight, const at::Tensor& gradient, float scale) {
  if (!gradient.defined() || (!weight.gradient.defined() && !weight.autograd_adds())) return {};
  if (!weight.gradient.defined()) return (gradient * scale).to(weight.value.scalar_type());
  at::Tensor into = weight.gradient;
  into.add_(gradient, scale);
  return {};
}

at::Tensor AddOrReturnRowSum(const Weight& weight, const at::Tensor& rows) {
  if constexpr (kBuiltWithCuda) {
    if (rows.is_cuda()) return cuda::AddOrReturnRowSum(weight, rows);
  }
  return AddOrReturn(weight, rows.sum(0, /*keepdim=*/false, at::kFloat));
}

}  // namespace millrace::engine::ops
