#include "millrace/engine/ops/divided_norm.h"

#include "millrace/engine/errors.h"
#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/norm.h"
#include "millrace/engine/ops/product.h"

namespace millrace::engine::ops {
namespace {

/// Returns the ranks' sum of each row of x (float32 [N, columns]): [N, 1].
at::Tensor RowSums(const at::Tensor& x, const TensorRanks& ranks) {
  at::Tensor sums = x.sum(1, /*keepdim=*/true);
  ThrowIfFailed(ranks.group->AllReduce(sums));
  return sums;
}

}  // namespace

at::Tensor DividedRmsNorm(const at::Tensor& x, const Weight& weight, const DividedColumns& divided,
                          const TensorRanks& ranks) {
  if (ranks.size() == 1) return AddRmsNorm(x, {}, weight, {.eps = divided.eps}).out;
  // The sum counts columns as often as ranks hold them.
  const double counted = static_cast<double>(divided.columns * divided.repeats);
  const at::Tensor rows = x.detach(), scale = weight.value.detach();
  const at::Tensor wide = rows.to(at::kFloat);
  const at::Tensor rstd = at::rsqrt(RowSums(wide.square(), ranks) / counted + divided.eps);
  at::Tensor out = scale * (wide * rstd).to(x.scalar_type());
  if (Recording({x, weight.value})) {
    Connect("DividedRmsNorm", {x, weight.value}, {out},
            [rows, rstd, weight, scale, ranks, counted](TensorList&& gradients) {
              const at::Tensor dout = gradients[0].to(at::kFloat), normed = rows.to(at::kFloat) * rstd;
              const at::Tensor through = dout * scale.to(at::kFloat);
              // Every rank subtracts its part: those with the same columns add up to the whole.
              const at::Tensor mean = RowSums(through * normed, ranks) / counted;
              const at::Tensor dx = (through - normed * mean) * rstd;
              return TensorList{dx.to(rows.scalar_type()), AddOrReturn(weight, (dout * normed).sum(0))};
            });
  }
  return out;
}

}  // namespace millrace::engine::ops
