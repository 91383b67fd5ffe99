// What several ranks hold is written by one of them, and all ranks write about as much.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/checkpoint/exchange/group.h"
#include "millrace/checkpoint/save/save_piece.h"

namespace millrace::checkpoint {

/// A piece that a rank holds, as in SavePiece.
struct HeldPiece {
  std::string name;
  TensorMeta meta;
  Box box;
  std::uint64_t begin = 0, elements = 0;
};
/// A run of a rank's piece: `elements` from `begin`, counted within the piece.
struct Share {
  std::size_t piece = 0;
  std::uint64_t begin = 0, elements = 0;
  bool operator==(const Share&) const = default;
};

/// For each rank what it writes of what it holds. Pieces that are the same on several ranks (name, box, run) are
/// written once between them: cut where that balances bytes over ranks, but not into less than `least_bytes` each on
/// average. The same answer for the same input. Takes time in proportion to pieces × log.
std::vector<std::vector<Share>> BalanceReplicas(const std::vector<std::vector<HeldPiece>>& held,
                                                std::uint64_t least_bytes = 1 * kMiB);

/// Collective: what this rank should give to Writer::Save of what it holds. To be called once for a layout, not before
/// every save. Ranks that hold overlapping but different pieces are not helped: their save will fail.
Result<std::vector<SavePiece>> ShareReplicas(Group& group, const std::vector<SavePiece>& held);

}  // namespace millrace::checkpoint
