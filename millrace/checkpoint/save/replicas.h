// Tensors that several ranks hold are written once, and all ranks write about the same number of bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/checkpoint/exchange/rank_exchange.h"
#include "millrace/checkpoint/save/save_piece.h"

namespace millrace::checkpoint {

/// A piece that a rank holds, as in SavePiece.
struct HeldPiece {
  std::string name;
  TensorMeta meta;
  Box box;
  std::uint64_t begin = 0, elements = 0;
};
/// What a rank writes of one of its pieces: `elements` from `begin`, counted within the piece.
struct PieceShare {
  std::size_t piece = 0;
  std::uint64_t begin = 0, elements = 0;
  bool operator==(const PieceShare&) const = default;
};

/// Returns for each rank what it writes of the pieces that it holds. If several ranks hold the same piece (name, box,
/// run), they write it once between them. The piece is cut if that balances bytes over ranks, into parts of at least
/// `least_bytes` on average. Deterministic. Takes O(n log n) for n pieces.
std::vector<std::vector<PieceShare>> BalanceReplicas(const std::vector<std::vector<HeldPiece>>& held,
                                                     std::uint64_t least_bytes = 1 * kMiB);

/// Collective. Returns the pieces that this rank gives to Writer::Save, of those that it holds. Call it once for a
/// layout, not before every save. Pieces of two ranks that overlap but differ stay as they are; the save then fails.
Result<std::vector<SavePiece>> ShareReplicas(RankExchange& group, const std::vector<SavePiece>& held);

}  // namespace millrace::checkpoint
