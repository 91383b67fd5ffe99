// Adapters that are not among a model's parameters. One model can have many of them: each changes some rows of a pass.
// So a server makes texts of several adapters in one batch (Chen et al. 2023, "Punica: Multi-Tenant LoRA Serving").
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "millrace/engine/layers/forward_context.h"
#include "millrace/engine/ops/linear.h"
#include "millrace/engine/ops/low_rank.h"

namespace millrace::engine {

/// The update of one linear layer by an adapter.
struct LayerUpdate {
  ops::LowRankUpdate update = {};  ///< undefined: the layer stays as it is
  at::Tensor factors = {};         ///< with magnitudes: m / |V| [out] in float32, and 1 where a row has no magnitude
};

/// An adapter of a model. Immutable after it was made; any thread.
struct AdapterWeights {
  std::vector<LayerUpdate> layers;  ///< by the number of the model's LinearLayer
};

/// Returns ops::Linear(x, weights), in which the rows of each adapter are those of the layer with that adapter. They
/// have the same bits as in a pass with one adapter alone, if the step's kernels compute rows alone (StepKernels).
/// A layer with a bias and magnitudes reads its weight once more for each such adapter.
/// `layer`: its number. REQUIRES: no graph is recorded.
at::Tensor AdaptedLinear(const at::Tensor& x, const ops::LinearWeights& weights, std::size_t layer,
                         std::span<const AdaptedRows> rows);

}  // namespace millrace::engine
