// Low-rank updates of the weights of linear layers (LoRA: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language
// Models"), also with magnitudes (DoRA: Liu et al. 2024, "DoRA: Weight-Decomposed Low-Rank Adaptation").
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/engine/ops/dropout.h"
#include "millrace/engine/parameters/weight.h"

namespace millrace::engine::ops {

/// The low-rank update of a layer's frozen weight [out, in]. Module i, a range of the outputs, adds scale ·
/// drop(x)·down_i^T·up_i^T to its own. `down_i` is rows i·rank … of `down`. A default update adds nothing.
///
/// With magnitudes, row j of a module's matrix becomes m_j · V_j / |V_j|, where V is the weight with the update.
/// Dropout is then of that matrix's part, too: the outputs are W·(x - drop(x)) + m · V·drop(x) / |V|. ops::LinearPass
/// computes that.
struct LowRankUpdate {
  struct Module {
    std::int64_t first_output = 0;  ///< among those of the layer
    Weight up = {};                 ///< B [outputs, rank]
    DropoutSite dropout = {};       ///< of x
    Weight magnitude = {};          ///< m [outputs], of all modules or of none
    std::int64_t outputs() const { return up.value.size(0); }
  };
  Weight down = {};                  ///< A [modules · rank, in]
  std::vector<Module> modules = {};  ///< in the order of their outputs
  double scale = 1;
  /// With magnitudes: |V| of the layer's rows, kept by the caller for further passes with the same weights. A pass sets
  /// an undefined one. Borrowed; may be null.
  at::Tensor* row_norms = nullptr;
  bool defined() const { return !modules.empty(); }
  bool has_magnitudes() const { return defined() && modules.front().magnitude.value.defined(); }
  bool learns() const { return down.gradient.defined() || (defined() && modules.front().up.gradient.defined()); }
  /// Returns whether no module drops elements of x. Then the modules share their products with x, and the update is a
  /// matrix.
  bool is_matrix() const;
  /// Adds scale · up · down to rows `first` … of the layer's [out, in]: `rows` [count, in] in float32.
  /// REQUIRES: float32.
  void AddTo(std::int64_t first, const at::Tensor& rows) const;
  /// Returns the same update in float32, without gradients.
  LowRankUpdate InFloat() const;
};

/// Rows of a pass, and the update that they have: of an adapter among several.
struct UpdatedRows {
  const LowRankUpdate* update;
  at::Tensor x, out;        ///< [N, in], [N, out]
  at::Tensor factors = {};  ///< defined: the outputs with the update are multiplied with it, [out] in float32
};
/// Adds each update's outputs to its rows, which no other part has. If the thread's KernelScope says so, rows in the
/// memory of a CPU have the bits that they would have alone. Each thread then computes a few rows of one update,
/// because the products of an adapter are too small to be shared. REQUIRES: is_matrix(), no graph is recorded.
void AddUpdates(std::span<const UpdatedRows> parts);

/// The passes of one update without autograd. A pass keeps what a later one needs: [N, modules · rank] numbers. So an
/// object is for one forward and one backward pass. x is [N, in], dout [N, out]. A layer that adds the update to its
/// matrix calls only AddGradients().
class LowRankPass {
 public:
  explicit LowRankPass(LowRankUpdate update) : update_(std::move(update)) {}

  /// Adds the update's outputs to `out` [N, out].
  void AddOutput(const at::Tensor& x, const at::Tensor& out);
  /// Adds the update's part to the gradient of x. REQUIRES: AddOutput() was called.
  void AddInputGradient(const at::Tensor& dout, const at::Tensor& dx);
  /// Adds to the gradients of `down` and `up`, where they are defined.
  void AddGradients(const at::Tensor& x, const at::Tensor& dout);

 private:
  std::int64_t rank() const { return update_.down.value.size(0) / static_cast<std::int64_t>(update_.modules.size()); }
  at::Tensor InnerOf(const at::Tensor& x) const;
  /// Returns the rows of `down` that are module i's.
  at::Tensor DownOf(const at::Tensor& down, std::size_t i) const {
    return down.narrow(0, static_cast<std::int64_t>(i) * rank(), rank());
  }
  at::Tensor OutputsOf(const at::Tensor& out, std::size_t i) const;
  const at::Tensor& InnerGradient(const at::Tensor& dout);

  const LowRankUpdate update_;
  at::Tensor inner_;           ///< drop(x) · down^T
  at::Tensor inner_gradient_;  ///< its gradient; undefined until it is needed
};

}  // namespace millrace::engine::ops
