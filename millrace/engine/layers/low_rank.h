// What a linear layer knows of its LoRA adapters.
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

/// The adapters of a layer's modules: ops::LowRankUpdate, with handles for weights. A value type. A default one has no
/// module.
struct LowRankAdapters {
  struct Module {
    std::int64_t first_output = 0;
    WeightHandle up;
    std::uint64_t dropout_site = 0;
    WeightHandle magnitude = {};  ///< with DoRA
  };
  WeightHandle down;
  std::vector<Module> modules;
  double scale = 1, dropout = 0;
  bool sees_some_tokens = false;  ///< the rows of x are this rank's, as in ForwardContext::first_token
  std::int64_t first_input = 0;   ///< of this rank's columns of x

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

  /// Returns what the adapter adds to the logits of a head with inputs x [N, in]. REQUIRES: one module at most, without
  /// magnitudes.
  ops::HeadUpdate ForHead(const at::Tensor& x, const ForwardContext& context) const {
    const ops::LowRankUpdate update = For(context);
    if (!update.defined()) return {};
    const ops::LowRankUpdate::Module& module = update.modules.front();
    return {ops::Linear(ops::Dropout(x, module.dropout), {.matrix = update.down}) * update.scale, module.up};
  }
};

}  // namespace millrace::engine
