// The state that a zstd decoder carries from one block of a frame to the next (RFC 8878). With this state, decoding can
// begin inside a frame.
//
// libzstd decodes whole frames only. But beside the last bytes that it decoded, a decoder knows little at the start of
// a block: the Huffman code of the literals, three FSE tables for the parts of sequences, and the last three offsets. A
// zstd dictionary holds just these and the bytes. So the rest of a frame, with a frame header in front, is a frame that
// libzstd decodes with such a dictionary to the same bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::data {

/// Keeps the state of a decoder over the compressed blocks of one frame, without decoding them. One thread.
/// Errors of all functions: kCorrupt if the bytes are not a block.
class ZstdTables {
 public:
  /// Takes the body of the next compressed block. With `offsets` it reads the block's sequences, which takes about as
  /// long as decoding them. Without, the offsets become unknown, unless the block has few sequences.
  Status Follow(ByteSpan body, bool offsets);

  /// Returns true if the last three offsets are known and lie within `window` bytes.
  bool Complete(std::size_t window) const;
  /// Returns a dictionary for decoding from the next block on. `window` is the last bytes that were decoded.
  /// REQUIRES: Complete(window.size()).
  std::string Dictionary(std::string_view window);

 private:
  enum TableKind { kLiteralLengths, kOffsets, kMatchLengths };
  static constexpr int kTableKinds = 3;

  /// The counts of an FSE table, or its only symbol.
  struct FseTable {
    std::string description;  ///< as in a block or dictionary; empty for one symbol
    std::vector<std::int16_t> counts;
    int log = 0;
    std::uint8_t symbol = 0;
  };
  /// A cell of a decoding table.
  struct FseCell {
    std::uint8_t symbol = 0, bits = 0;
    std::uint16_t next = 0;
  };

  static const FseTable& Predefined(TableKind kind);
  static Result<FseTable> ReadTable(TableKind kind, ByteSpan& rest);
  static std::vector<FseCell> Spread(const FseTable& table);
  Status ReadLiterals(ByteSpan& rest);
  Status FollowOffsets(ByteSpan bits, std::uint32_t sequences);
  void Remember(std::uint64_t code, bool no_literals);

  std::string huffman_;  ///< description of the literals' code; empty: no block had one yet
  std::array<FseTable, kTableKinds> tables_{Predefined(kLiteralLengths), Predefined(kOffsets),
                                            Predefined(kMatchLengths)};
  std::array<bool, kTableKinds> entered_without_{};  ///< a dictionary left the table out, so no block may repeat it
  std::array<std::uint32_t, 3> offsets_{1, 4, 8};    ///< the latest first; 0: not known
};

}  // namespace millrace::data
