#include "millrace/engine/ops/low_rank.h"

#include <algorithm>

#include "millrace/engine/ops/choice/step_kernels.h"
#include "millrace/engine/ops/product.h"

namespace millrace::engine::ops {
namespace {

/// c += scale · a · b. c is of any type, and may be some columns of a matrix.
void AddScaledProduct(at::Tensor c, const at::Tensor& a, const at::Tensor& b, double scale) {
  if (MultipliesRowsAlone() && c.is_cpu()) {
    c.add_(Product(a.contiguous(), b), scale);
  } else if (c.scalar_type() == at::kFloat) {
    AddProduct(c, a, b, static_cast<float>(scale));
  } else if (c.is_cuda()) {
    at::addmm_out(c, c, a, b, 1, scale);
  } else {
    c.add_(Product(a, b), scale);
  }
}

}  // namespace

bool LowRankUpdate::is_matrix() const {
  return defined() && std::ranges::none_of(modules, [](const Module& module) { return module.dropout.active(); });
}

LowRankUpdate LowRankUpdate::InFloat() const {
  LowRankUpdate update{.down = {.value = down.value.detach().to(at::kFloat)}, .scale = scale};
  for (const Module& module : modules) {
    update.modules.push_back(
        {.first_output = module.first_output, .up = {.value = module.up.value.detach().to(at::kFloat)}});
  }
  return update;
}

void LowRankUpdate::AddTo(std::int64_t first, const at::Tensor& rows) const {
  const std::int64_t rank = down.value.size(0) / static_cast<std::int64_t>(modules.size());
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const Module& module = modules[i];
    const std::int64_t begin = std::max(first, module.first_output);
    const std::int64_t end = std::min(first + rows.size(0), module.first_output + module.up.value.size(0));
    if (begin >= end) continue;
    AddProduct(rows.narrow(0, begin - first, end - begin),
               module.up.value.detach().narrow(0, begin - module.first_output, end - begin),
               down.value.detach().narrow(0, static_cast<std::int64_t>(i) * rank, rank), static_cast<float>(scale));
  }
}

at::Tensor LowRankPass::OutputsOf(const at::Tensor& out, std::size_t i) const {
  const LowRankUpdate::Module& module = update_.modules[i];
  return out.narrow(1, module.first_output, module.up.value.size(0));
}

at::Tensor LowRankPass::InnerOf(const at::Tensor& x) const {
  const at::Tensor down = update_.down.value.detach();
  if (update_.is_matrix()) return Product(x, down.t());
  std::vector<at::Tensor> inner;
  for (std::size_t i = 0; i < update_.modules.size(); ++i) {
    inner.push_back(Product(Dropout(x, update_.modules[i].dropout), DownOf(down, i).t()));
  }
  return at::cat(inner, 1);
}

void LowRankPass::AddOutput(const at::Tensor& x, const at::Tensor& out) {
  inner_ = InnerOf(x);
  for (std::size_t i = 0; i < update_.modules.size(); ++i) {
    AddScaledProduct(OutputsOf(out, i), inner_.narrow(1, static_cast<std::int64_t>(i) * rank(), rank()),
                     update_.modules[i].up.value.detach().t(), update_.scale);
  }
}

const at::Tensor& LowRankPass::InnerGradient(const at::Tensor& dout) {
  if (inner_gradient_.defined()) return inner_gradient_;
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < update_.modules.size(); ++i) {
    parts.push_back(Product(OutputsOf(dout, i), update_.modules[i].up.value.detach()));
  }
  inner_gradient_ = parts.size() == 1 ? parts.front() : at::cat(parts, 1);
  return inner_gradient_.mul_(update_.scale);
}

void LowRankPass::AddInputGradient(const at::Tensor& dout, const at::Tensor& dx) {
  const at::Tensor& inner = InnerGradient(dout);
  const at::Tensor down = update_.down.value.detach();
  if (update_.is_matrix()) return AddScaledProduct(dx, inner, down, 1);
  for (std::size_t i = 0; i < update_.modules.size(); ++i) {
    const at::Tensor mine = inner.narrow(1, static_cast<std::int64_t>(i) * rank(), rank());
    // The gradient of a dropped element is dropped alike.
    at::Tensor into = dx;
    into.add_(Dropout(Product(mine, DownOf(down, i)), update_.modules[i].dropout));
  }
}

void LowRankPass::AddGradients(const at::Tensor& x, const at::Tensor& dout) {
  const at::Tensor& inner = InnerGradient(dout);
  if (update_.down.gradient.defined()) {
    if (update_.is_matrix()) {
      AddProduct(update_.down.gradient, inner.t(), x);
    } else {
      for (std::size_t i = 0; i < update_.modules.size(); ++i) {
        AddProduct(DownOf(update_.down.gradient, i), inner.narrow(1, static_cast<std::int64_t>(i) * rank(), rank()).t(),
                   Dropout(x, update_.modules[i].dropout));
      }
    }
  }
  for (std::size_t i = 0; i < update_.modules.size(); ++i) {
    const Weight& up = update_.modules[i].up;
    if (!up.gradient.defined()) continue;
    if (!inner_.defined()) inner_ = InnerOf(x);
    AddProduct(up.gradient, OutputsOf(dout, i).t(), inner_.narrow(1, static_cast<std::int64_t>(i) * rank(), rank()),
               static_cast<float>(update_.scale));
  }
}

}  // namespace millrace::engine::ops
