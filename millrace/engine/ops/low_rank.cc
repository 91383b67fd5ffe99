#include "millrace/engine/ops/low_rank.h"

#include <algorithm>

#include "millrace/base/process/simd.h"
#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/ops/cpu/row_product.h"
#include "millrace/engine/ops/dispatch.h"
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

/// into += scale · product, in one row.
template <class T>
MR_INLINE void AddScaledRow(const T* product, float scale, std::int64_t count, T* into) {
  for (std::int64_t c = 0; c < count; ++c) {
    into[c] = cpu::FromFloat<T>(cpu::ToFloat(into[c]) + scale * cpu::ToFloat(product[c]));
  }
}

}  // namespace

MR_SIMD static void AddScaled(const float* product, float scale, std::int64_t count, float* into) {
  AddScaledRow(product, scale, count, into);
}
MR_SIMD static void AddScaled(const cpu::Bf16* product, float scale, std::int64_t count, cpu::Bf16* into) {
  AddScaledRow(product, scale, count, into);
}

namespace {

/// Rows that a thread computes at a time.
constexpr std::int64_t kRowsOfAThread = 16;

/// Returns whether UpdateRows() computes a part.
bool HasRowsAlone(const UpdatedRows& part) {
  const auto dense = [&](const at::Tensor& tensor) {
    return tensor.is_contiguous() && tensor.scalar_type() == part.x.scalar_type();
  };
  return MultipliesRowsAlone() && HasFused(part.x) && dense(part.x) && dense(part.out) &&
         dense(part.update->down.value) &&
         std::ranges::all_of(part.update->modules, [&](const auto& module) { return dense(module.up.value); }) &&
         (!part.factors.defined() || part.factors.is_contiguous());
}

/// Adds the update's outputs to rows [first, end) of a part.
template <class T>
void UpdateRows(const UpdatedRows& part, std::int64_t first, std::int64_t end) {
  const LowRankUpdate& update = *part.update;
  const auto modules = static_cast<std::int64_t>(update.modules.size());
  const std::int64_t rows = end - first, in = part.x.size(1), out = part.out.size(1);
  const std::int64_t inner = update.down.value.size(0), rank = inner / modules;
  std::vector<T> sums(static_cast<std::size_t>(rows * inner)), own(static_cast<std::size_t>(rows * rank)), product;
  cpu::RowProduct<T>{Data<T>(part.x) + first * in, Data<T>(update.down.value), nullptr, sums.data(), rows, inner, in}
      .Run(0, inner);
  for (std::int64_t i = 0; i < modules; ++i) {
    const LowRankUpdate::Module& module = update.modules[static_cast<std::size_t>(i)];
    for (std::int64_t row = 0; row < rows; ++row) {
      std::copy_n(sums.data() + row * inner + i * rank, rank, own.data() + row * rank);
    }
    product.resize(static_cast<std::size_t>(rows * module.outputs()));
    cpu::RowProduct<T>{own.data(), Data<T>(module.up.value), nullptr, product.data(), rows, module.outputs(), rank}.Run(
        0, module.outputs());
    for (std::int64_t row = 0; row < rows; ++row) {
      AddScaled(product.data() + row * module.outputs(), static_cast<float>(update.scale), module.outputs(),
                Data<T>(part.out) + (first + row) * out + module.first_output);
    }
  }
  if (!part.factors.defined()) return;
  const float* const factors = part.factors.data_ptr<float>();
  for (std::int64_t row = first; row < end; ++row) {
    T* const into = Data<T>(part.out) + row * out;
    for (std::int64_t c = 0; c < out; ++c) into[c] = cpu::FromFloat<T>(cpu::ToFloat(into[c]) * factors[c]);
  }
}

}  // namespace

void AddUpdates(std::span<const UpdatedRows> parts) {
  struct Task {
    const UpdatedRows* part;
    std::int64_t first, end;
  };
  std::vector<Task> tasks;
  for (const UpdatedRows& part : parts) {
    const std::int64_t rows = part.x.size(0);
    if (HasRowsAlone(part)) {
      for (std::int64_t first = 0; first < rows; first += kRowsOfAThread) {
        tasks.push_back({&part, first, std::min(first + kRowsOfAThread, rows)});
      }
      continue;
    }
    LowRankPass(*part.update).AddOutput(part.x, part.out);
    at::Tensor into = part.out;
    if (part.factors.defined()) into.copy_((into * part.factors).to(into.scalar_type()));
  }
  at::parallel_for(0, std::ssize(tasks), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Task& task = tasks[static_cast<std::size_t>(i)];
      DispatchType(task.part->x, [&]<class T>(T) { UpdateRows<T>(*task.part, task.first, task.end); });
    }
  });
}

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
  const UpdatedRows all{&update_, x, out};
  if (update_.is_matrix() && HasRowsAlone(all)) return AddUpdates({&all, 1});
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
    dx.add_(Dropout(Product(mine, DownOf(down, i)), update_.modules[i].dropout));
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
