// The memory of a rank.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "millrace/plan/layout_cost.h"

namespace millrace::plan {

enum class MemoryKind {
  kWeights,
  kGathered,     ///< blocks for weights of other ranks, with zero 3, and for gradients before they are divided
  kGradients,    ///< float32
  kOptimizer,    ///< moments
  kMaster,       ///< float32 copy of bfloat16 weights
  kActivations,  ///< kept from forward to backward passes
  kWorking,      ///< logits, and results that live during one pass
  kSnapshot,     ///< what checkpoints are made from
  kData,         ///< samples read ahead
  kProcess,      ///< libraries, contexts, and holes of the heap
};
inline constexpr int kMemoryKinds = 10;
std::string_view MemoryKindName(MemoryKind kind);

/// Bytes by kind, at the moment of a step that needs most. Of an accelerator where there is one: snapshots and samples
/// are then in the host's memory, and do not count.
struct MemoryUse {
  std::array<std::int64_t, kMemoryKinds> bytes{};
  std::int64_t& operator[](MemoryKind kind) { return bytes[static_cast<std::size_t>(kind)]; }
  std::int64_t operator[](MemoryKind kind) const { return bytes[static_cast<std::size_t>(kind)]; }
  std::int64_t total() const;
};

MemoryUse MemoryOf(const TrainingSetup& setup, const Layout& layout, const LayoutCost& cost, const RankShare& share,
                   const Machine& machine);

}  // namespace millrace::plan
