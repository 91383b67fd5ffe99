// What all layers of one forward pass share.
#pragma once

#include <cstdint>
#include <optional>

#include "millrace/engine/layers/kv_cache.h"
#include "millrace/engine/ops/dropout.h"
#include "millrace/engine/ops/layout/sequences.h"

namespace millrace::engine {

/// The tokens of a forward pass. Borrows the cache.
struct ForwardContext {
  ops::Sequences sequences;
  KvCache* cache = nullptr;  ///< with a cache, each sequence is a row that follows the row's tokens in it
  std::optional<ops::DropoutRows> dropout = {};  ///< nothing: no element is dropped

  /// Returns the site where elements are dropped with this probability; an inactive one without dropout.
  ops::DropoutSite DropoutAt(std::uint64_t site, double probability) const {
    return dropout ? ops::DropoutSite{probability, site, *dropout} : ops::DropoutSite{};
  }
};

}  // namespace millrace::engine
