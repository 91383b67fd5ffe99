// Holds the LoRA adapters of a linear layer, as handles to their weights.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/engine/layers/forward_context.h"
#include "millrace/engine/ops/cross_entropy.h"
#include "millrace/engine/ops/dropout.h"
#include "millrace/engine/ops/linear.h"
#include "millrace/engine/ops/low_rank.h"
#include "millrace/engine/parameters/parameter_buffer.h"

namespace millrace::engine {

/// The adapters of a layer's modules, such as the query, key and value of one fused layer. For() makes an
/// ops::LowRankUpdate of them, for one pass. A value type. A default object has no module and changes nothing.
struct LowRankAdapters {
  struct Module {
    std::int64_t first_output = 0;   ///< the module's first output among those of the layer
    WeightHandle up;                 ///< B of LoRA: [outputs of the module, rank]
    std::uint64_t dropout_site = 0;  ///< the number of the site at which elements of x are dropped
    WeightHandle magnitude = {};     ///< with DoRA: the magnitude of each output
  };
  WeightHandle down;  ///< A of LoRA, of all modules: [modules · rank, in]
  std::vector<Module> modules;
  double scale = 1, dropout = 0;
  bool sees_some_tokens = false;  ///< true: x has only this rank's tokens (ForwardContext::first_token)
  std::int64_t first_input = 0;   ///< the first of this rank's columns of x

  /// Returns the update for one pass. Empty if there is no module, or if the pass leaves out adapters.
  ops::LowRankUpdate For(const ForwardContext& context) const {
    if (modules.empty() || context.without_adapters) return {};
    ops::LowRankUpdate update{.down = *down, .scale = scale};
    for (const Module& module : modules) {
      ops::DropoutSite drop = context.DropoutAt(module.dropout_site, dropout);
      if (!sees_some_tokens) drop.first_token = 0;
      drop.first_column = first_input;
      update.modules.push_back({module.first_output, *module.up, drop, *module.magnitude});
    }
    if (context.cache != nullptr && update.has_magnitudes()) {
      update.row_norms = &context.cache->RowNorms(modules.front().dropout_site);
    }
    return update;
  }

  /// Returns what the adapter adds to the logits of a head, whose inputs are x [N, in]. REQUIRES: at most one module,
  /// without a magnitude.
  ops::HeadUpdate ForHead(const at::Tensor& x, const ForwardContext& context) const {
    const ops::LowRankUpdate update = For(context);
    if (!update.defined()) return {};
    const ops::LowRankUpdate::Module& module = update.modules.front();
    return {ops::Linear(ops::Dropout(x, module.dropout), {.matrix = update.down}) * update.scale, module.up};
  }
};

}  // namespace millrace::engine
