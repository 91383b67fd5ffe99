#include "millrace/engine/ops/linear.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "millrace/engine/ops/common/deferred_work.h"
#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/ops/cuda/tensors/product.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/dropout.h"
#include "millrace/engine/ops/product.h"
#include "millrace/engine/ops/quantized_product.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine::ops {
namespace {

/// Rows of a matrix that are float32 at once: 1 MiB, which a core's cache holds.
constexpr std::int64_t kNormElements = 1 << 18;

at::Tensor OutputsOf(const LowRankUpdate::Module& module, const at::Tensor& out) {
  return out.narrow(1, module.first_output, module.outputs());
}

/// Returns the sum of the squares of each row [out] in float32, after `add` has added to it.
at::Tensor RowSquaresOf(const at::Tensor& matrix, const AddToRows& add) {
  at::Tensor squares = at::empty({matrix.size(0)}, matrix.options().dtype(at::kFloat));
  const std::int64_t most = std::max<std::int64_t>(1, kNormElements / matrix.size(1));
  for (std::int64_t first = 0; first < matrix.size(0); first += most) {
    const std::int64_t count = std::min(most, matrix.size(0) - first);
    at::Tensor rows = matrix.narrow(0, first, count).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    add(first, rows);
    squares.narrow(0, first, count).copy_(rows.square_().sum(1));
  }
  return squares;
}

}  // namespace

std::vector<at::Tensor> LinearWeights::InputsWith(const at::Tensor& x) const {
  std::vector<at::Tensor> inputs{x, matrix.value, bias.value};
  if (update.defined()) inputs.push_back(update.down.value);
  for (const LowRankUpdate::Module& module : update.modules) inputs.push_back(module.up.value);
  if (update.has_magnitudes()) {
    for (const LowRankUpdate::Module& module : update.modules) inputs.push_back(module.magnitude.value);
  }
  return inputs;
}

bool LinearWeights::adds_update_first(std::int64_t tokens) const {
  return codes && update.is_matrix() && update.down.value.scalar_type() == at::kFloat && tokens > codes->columns() &&
         !MultipliesRowsAlone();
}

AddToRows LinearPass::AddsUpdate() const {
  return [this](std::int64_t first, const at::Tensor& rows) { weights_.update.AddTo(first, rows); };
}

at::Tensor LinearPass::MatrixProduct(const at::Tensor& x, const at::Tensor& bias, bool keeps_input) {
  const Weight& matrix = weights_.matrix;
  if constexpr (kBuiltWithCuda) {
    const Fp8Scaling scaling = weights_.layer ? ScalingInFp8() : Fp8Scaling::kNone;
    if (scaling != Fp8Scaling::kNone && cuda::Fp8Linear::Takes(x, matrix)) {
      fp8_.emplace(matrix, *weights_.layer, scaling, LargestInFp8());
      return fp8_->Forward(x, bias, keeps_input && matrix.gradient.defined() && at::GradMode::is_enabled());
    }
  }
  return Product(x, matrix.value.detach().t(), bias);
}

at::Tensor LinearPass::ProductWithMatrix(const at::Tensor& dout) {
  if constexpr (kBuiltWithCuda) {
    if (fp8_) return fp8_->InputGradient(dout);
  }
  return Product(dout, weights_.matrix.value.detach());
}

void LinearPass::AddMatrixGradient(const at::Tensor& x, const at::Tensor& dout) {
  if constexpr (kBuiltWithCuda) {
    if (fp8_) return fp8_->AddGradient(x, dout);
  }
  AddProduct(weights_.matrix.gradient, dout.t(), x);
}

/// Adds to the gradients of the matrix and the bias if one product makes both. Returns whether it does.
bool LinearPass::AddBothGradients(const at::Tensor& x, const at::Tensor& dout) {
  if constexpr (kBuiltWithCuda) {
    const Weight &matrix = weights_.matrix, &bias = weights_.bias;
    const bool has_both = matrix.gradient.defined() && bias.gradient.defined();
    if (has_both && dout.is_cuda() && !fp8_ && x.scalar_type() == dout.scalar_type()) {
      return cuda::AddProductWithSums(matrix.gradient, dout.t(), x, bias.gradient);
    }
  }
  return false;
}

bool LinearPass::needs_input() const {
  return weights_.update.learns() || (weights_.matrix.gradient.defined() && !(fp8_ && fp8_->has_input()));
}

at::Tensor LinearPass::Forward(const at::Tensor& x, bool keeps_input) {
  const bool scales = weights_.update.has_magnitudes();
  const at::Tensor bias = weights_.bias.defined() ? weights_.bias.value.detach() : at::Tensor();
  const at::Tensor added = scales ? at::Tensor() : bias;
  const bool first = weights_.adds_update_first(x.size(0));
  at::Tensor out = weights_.codes ? Product(x.detach(), *weights_.codes, added, first ? AddsUpdate() : AddToRows())
                                  : MatrixProduct(x.detach(), added, keeps_input);
  if (scales) {
    out = Scale(x.detach(), std::move(out), /*has_update=*/first);
    if (bias.defined()) out.add_(bias);
  } else if (weights_.update.defined() && !first) {
    update_.AddOutput(x.detach(), out);
  }
  return out;
}

at::Tensor LinearPass::InputGradient(const at::Tensor& dout) {
  const LowRankUpdate& update = weights_.update;
  const bool first = weights_.adds_update_first(dout.size(0)), scales = update.has_magnitudes();
  const at::Tensor& scaled = scales ? ScaledGradient(dout) : dout;
  const at::Tensor& of_weight = scales && drops() ? dout : scaled;
  at::Tensor dx = weights_.codes ? ProductWithTranspose(of_weight, *weights_.codes, first ? AddsUpdate() : AddToRows())
                                 : ProductWithMatrix(of_weight);
  if (scales && drops()) {
    for (const Module& module : update.modules) {
      const at::Tensor difference = OutputsOf(module, scaled) - OutputsOf(module, dout);
      dx.add_(Dropout(ModuleProductWithTranspose(module, difference), module.dropout));
    }
  }
  if (update.defined() && !first) update_.AddInputGradient(scaled, dx);
  return dx;
}

void LinearPass::AddGradients(const at::Tensor& x, const at::Tensor& dout) {
  const bool scales = weights_.update.has_magnitudes();
  const Weight &matrix = weights_.matrix, &bias = weights_.bias;
  TORCH_CHECK(!scales || !matrix.gradient.defined(), "a weight under magnitudes is frozen");
  if (!AddBothGradients(x, dout)) {
    if (matrix.gradient.defined()) AddMatrixGradient(x, dout);
    if (bias.gradient.defined()) AddOrReturnRowSum(bias, dout);
  }
  if (scales) AddMagnitudeGradients(dout);
  if (weights_.update.defined()) update_.AddGradients(x, scales ? ScaledGradient(dout) : dout);
}

at::Tensor LinearPass::ModuleProduct(const Module& module, const at::Tensor& x) const {
  if (weights_.codes) return Product(x, weights_.codes->Rows(module.first_output, module.outputs()));
  return Product(x, weights_.matrix.value.detach().narrow(0, module.first_output, module.outputs()).t());
}

at::Tensor LinearPass::ModuleProductWithTranspose(const Module& module, const at::Tensor& dout) const {
  if (weights_.codes) return ProductWithTranspose(dout, weights_.codes->Rows(module.first_output, module.outputs()));
  return Product(dout, weights_.matrix.value.detach().narrow(0, module.first_output, module.outputs()));
}

at::Tensor LinearPass::RowNorms() const {
  const LowRankUpdate update = weights_.update.InFloat();
  const AddToRows add = [&](std::int64_t first, const at::Tensor& rows) { update.AddTo(first, rows); };
  at::Tensor squares = weights_.codes ? RowSquares(*weights_.codes, add, weights_.update.down.value.device())
                                      : RowSquaresOf(weights_.matrix.value.detach(), add);
  if (sum_) sum_(squares);
  return squares.sqrt_().clamp_min_(std::numeric_limits<float>::min());
}

/// Scales the modules' outputs by their magnitudes. `out`: the weight's own products with x. `has_update`: with those
/// of the update.
at::Tensor LinearPass::Scale(const at::Tensor& x, at::Tensor out, bool has_update) {
  at::Tensor* const kept = weights_.update.row_norms;
  if (kept != nullptr && kept->defined()) {
    norms_ = *kept;
  } else {
    norms_ = RowNorms();
    if (kept != nullptr) *kept = norms_;
  }
  factors_ = at::ones_like(norms_);
  for (const Module& module : weights_.update.modules) {
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, module.first_output, module.outputs()); };
    part(factors_).copy_(module.magnitude.value.detach().to(at::kFloat) / part(norms_));
  }
  if (!drops()) {
    if (!has_update) update_.AddOutput(x, out);
    products_ = out;
    return (products_ * factors_).to(out.scalar_type());
  }
  products_ = at::zeros_like(out);
  for (const Module& module : weights_.update.modules) {
    OutputsOf(module, products_).copy_(ModuleProduct(module, Dropout(x, module.dropout)));
  }
  out.sub_(products_);
  update_.AddOutput(x, products_);
  return out.add_((products_ * factors_).to(out.scalar_type()));
}

/// Returns the gradient of the products that were scaled.
const at::Tensor& LinearPass::ScaledGradient(const at::Tensor& dout) {
  if (!scaled_gradient_.defined()) scaled_gradient_ = (dout * factors_).to(dout.scalar_type());
  return scaled_gradient_;
}

void LinearPass::AddMagnitudeGradients(const at::Tensor& dout) {
  for (const Module& module : weights_.update.modules) {
    if (!module.magnitude.gradient.defined()) continue;
    const at::Tensor sums = (OutputsOf(module, dout).to(at::kFloat) * OutputsOf(module, products_)).sum(0);
    at::Tensor into = module.magnitude.gradient;
    into.add_(sums / norms_.narrow(0, module.first_output, module.outputs()));
  }
}

namespace {

at::Tensor FusedLinear(const LayerInput& input, const LinearWeights& weights) {
  const at::Tensor& x = input.value;
  auto pass = std::make_shared<LinearPass>(weights);
  at::Tensor out = pass->Forward(x, /*keeps_input=*/!input.again);
  const TensorList inputs = weights.InputsWith(x);
  if (Recording(inputs)) {
    const bool needs_x = pass->needs_input();
    const at::Tensor kept = needs_x && !input.again ? x.detach() : at::Tensor();
    Connect("Linear", inputs, {out},
            [kept, again = needs_x ? input.again : nullptr, pass, wanted = x.requires_grad(),
             count = inputs.size()](TensorList&& gradients) {
              const at::Tensor& dout = gradients[0];
              RunOrDefer([=] { pass->AddGradients(again ? again() : kept, dout); });
              TensorList result(count);
              if (wanted) result[0] = pass->InputGradient(dout);
              return result;
            });
  }
  return out;
}

at::Tensor FusedAddBias(const at::Tensor& x, const Weight& bias) {
  at::Tensor out = x.detach() + bias.value.detach();
  if (Recording({x, bias.value})) {
    Connect("AddBias", {x, bias.value}, {out},
            [bias](TensorList&& gradients) { return TensorList{gradients[0], AddOrReturnRowSum(bias, gradients[0])}; });
  }
  return out;
}

}  // namespace

at::Tensor Linear(const LayerInput& x, const LinearWeights& weights) {
  static const auto kernels =
      AndOnCuda(OnCpu("Linear", reference::Linear, FusedLinear, FusedLinear), InCuda<FusedLinear>());
  return weights.takes_gradients() ? kernels.For(x.value)(x, weights) : reference::Linear(x, weights);
}

at::Tensor AddBias(const at::Tensor& x, const Weight& bias) {
  static const auto kernels =
      AndOnCuda(OnCpu("AddBias", reference::AddBias, FusedAddBias, FusedAddBias), InCuda<FusedAddBias>());
  return bias.gradient.defined() ? kernels.For(x)(x, bias) : reference::AddBias(x, bias);
}

}  // namespace millrace::engine::ops
