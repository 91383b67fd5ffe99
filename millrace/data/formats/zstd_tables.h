// What a zstd decoder carries from one block of a frame to the next (RFC 8878), so that decoding can begin inside of
// one.
//
// libzstd decodes whole frames only. But beside the last bytes that it made, a decoder knows little at the start of a
// block: the code of the literals, three tables for the parts of sequences, and the last three offsets. A zstd
// dictionary holds just these and the bytes. So the rest of a frame, with a header of its own in front and such a
// dictionary beside it, is a frame which libzstd decodes to the same bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::data {

/// Follows the compressed blocks of one frame. One thread. All functions fail with kCorrupt on what is not a block.
class ZstdTables {
 public:
  /// The body of the next compressed block. With `offsets` its sequences are gone through, which takes about as long as
  /// decoding them; a block that is followed without makes the offsets unknown, unless its sequences are few.
  Status Follow(ByteSpan body, bool offsets);

  /// True when the last three offsets are known, and they lie within `window` bytes.
  bool Complete(std::size_t window) const;
  /// A dictionary with which the next block can be decoded; needs Complete. `window`: the last bytes that were decoded.
  std::string Dictionary(std::string_view window);

 private:
  enum Kind { kLiteralLengths, kOffsets, kMatchLengths };
  static constexpr int kKinds = 3;

  /// Of one kind: the counts that an FSE table is made of, or one symbol alone.
  struct Table {
    std::string description;  ///< as in a block or dictionary; empty for one symbol
    std::vector<std::int16_t> counts;
    int log = 0;
    std::uint8_t symbol = 0;
  };
  /// A decoding table.
  struct Cell {
    std::uint8_t symbol = 0, bits = 0;
    std::uint16_t next = 0;
  };

  static const Table& Predefined(Kind kind);
  static Result<Table> ReadTable(Kind kind, ByteSpan& rest);
  static std::vector<Cell> Spread(const Table& table);
  Status ReadLiterals(ByteSpan& rest);
  Status FollowOffsets(ByteSpan bits, std::uint32_t sequences);
  void Remember(std::uint64_t code, bool no_literals);

  std::string huffman_;  ///< description; empty: none so far
  std::array<Table, kKinds> tables_{Predefined(kLiteralLengths), Predefined(kOffsets), Predefined(kMatchLengths)};
  std::array<bool, kKinds> entered_without_{};     ///< a dictionary had to leave the table out: no block may repeat it
  std::array<std::uint32_t, 3> offsets_{1, 4, 8};  ///< the latest first; 0: not known
};

}  // namespace millrace::data
