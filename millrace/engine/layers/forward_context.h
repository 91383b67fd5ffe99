// The context that all layers of one forward pass share.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "millrace/engine/layers/kv_cache.h"
#include "millrace/engine/ops/common/sequences.h"
#include "millrace/engine/ops/dropout.h"

namespace millrace::engine {

struct AdapterWeights;

/// Consecutive rows of a layer's input whose outputs an adapter changes (layers/adapted_linear.h). Borrows the adapter.
struct AdaptedRows {
  std::int64_t first = 0, count = 0;
  const AdapterWeights* adapter = nullptr;
};

/// Noise that is added to embeddings (NEFTune: Jain et al. 2023). A default one is none.
struct EmbeddingNoise {
  double alpha = 0;
  ops::DropoutRows rows;
  std::int64_t first_token = 0;  ///< the first row of x, counted in the micro-batch: ranks may divide the tokens
  bool active() const { return alpha > 0; }
};

/// The tokens of a forward pass. Borrows the cache and its tables.
struct ForwardContext {
  ops::Sequences sequences;
  KvCache* cache = nullptr;  ///< with a cache, each sequence follows the tokens that it has of it, in these blocks
  const ops::BlockTables* tables = nullptr;
  std::optional<ops::DropoutRows> dropout = {};  ///< nothing: no element is dropped
  EmbeddingNoise noise = {};
  bool without_adapters = false;  ///< the layers are those of the model that LoRA adapts
  /// Rows with adapters that are not among the model's parameters; disjoint. For passes without a graph.
  std::vector<AdaptedRows> adapted_rows = {};

  /// The outputs of norms and of activation functions are not kept for the backward pass, which computes them again.
  bool selective_recompute = false;

  std::int64_t first_token = 0;  ///< of this rank's rows of the residual stream; 0 unless ranks divide the tokens

  /// Returns the site where elements are dropped with this probability; an inactive one without dropout.
  ops::DropoutSite DropoutAt(std::uint64_t site, double probability) const {
    return dropout ? ops::DropoutSite{probability, site, *dropout, first_token} : ops::DropoutSite{};
  }
};

}  // namespace millrace::engine
