#include "millrace/data/compression/zstd_tables.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

namespace millrace::data {
namespace {

constexpr std::array<std::int16_t, 36> kLiteralLengthCounts = {
    4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1};
constexpr std::array<std::int16_t, 29> kOffsetCounts = {1, 1, 1, 1, 1, 1, 2, 2, 2, 1,  1,  1,  1,  1, 1,
                                                        1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1};
constexpr std::array<std::int16_t, 53> kMatchLengthCounts = {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1,  1,  1,  1,  1,  1,  1, 1,
                                                             1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
                                                             1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1};

/// Extra bits of the codes from 16 (literal lengths) and 32 (match lengths) on (RFC 8878, section 3.1.1.3.2.1.1). Lower
/// codes have none.
constexpr std::array<std::uint8_t, 20> kLiteralLengthBits = {1, 1, 1, 1,  2,  2,  3,  3,  4,  6,
                                                             7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
constexpr std::array<std::uint8_t, 21> kMatchLengthBits = {1, 1, 1, 1,  2,  2,  3,  3,  4,  4, 5,
                                                           7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
/// The largest code and the largest table, by TableKind (RFC 8878, section 3.1.1.3.2.1).
constexpr std::array<std::uint8_t, 3> kLargestCode = {35, 31, 52};
constexpr std::array<int, 3> kLargestLog = {9, 8, 9};
constexpr int kSmallestLog = 5;  // RFC 8878, section 4.1.1
/// The sequences of smaller blocks are always read, which is cheap. Blocks of very regular data never have more, and
/// such data may have no block with a new offset. 64 is a guess.
constexpr std::uint32_t kFewSequences = 64;

std::unexpected<Error> Damaged(std::string_view what) { return Fail(Code::kCorrupt, "a zstd block's {}", what); }

Result<ByteSpan> TakeBytes(ByteSpan& rest, std::size_t bytes) {
  if (rest.size() < bytes) return Damaged("parts exceed it");
  ByteSpan taken = rest.first(bytes);
  rest = rest.subspan(bytes);
  return taken;
}

std::uint32_t ByteAt(ByteSpan bytes, std::size_t at) { return std::to_integer<std::uint32_t>(bytes[at]); }

/// Reads bits forwards, from the lowest bit of the first byte on. Bits behind the end are zeros; used() counts them
/// too.
class ForwardBits {
 public:
  explicit ForwardBits(ByteSpan bytes) : bytes_(bytes) {}
  std::uint32_t Peek(int bits) const {
    std::uint32_t value = 0;
    for (int i = 0; i < bits; ++i) {
      const std::size_t at = used_ + static_cast<std::size_t>(i);
      if (at / 8 < bytes_.size()) value |= (ByteAt(bytes_, at / 8) >> (at % 8) & 1U) << i;
    }
    return value;
  }
  void Skip(int bits) { used_ += static_cast<std::size_t>(bits); }
  std::uint32_t Read(int bits) {
    const std::uint32_t value = Peek(bits);
    Skip(bits);
    return value;
  }
  std::size_t used_bytes() const { return (used_ + 7) / 8; }

 private:
  ByteSpan bytes_;
  std::size_t used_ = 0;
};

/// Reads bits backwards from the end. The highest set bit of the last byte only marks the end.
class BackwardBits {
 public:
  explicit BackwardBits(ByteSpan bytes) : bytes_(bytes) {
    if (bytes.empty() || bytes.back() == std::byte{0}) return;
    left_ = 8 * (bytes.size() - 1) + static_cast<std::size_t>(std::bit_width(ByteAt(bytes, bytes.size() - 1))) - 1;
  }
  /// Returns the next `bits`, at most 32. In front of the first byte returns zeros, and overrun() becomes true.
  std::uint32_t Read(int bits) {
    const auto wanted = static_cast<std::size_t>(bits);
    if (wanted > left_) {
      overrun_ = true;
      left_ = 0;
      return 0;
    }
    left_ -= wanted;
    const std::size_t first = left_ / 8, last = std::min(first + 8, bytes_.size());
    std::uint64_t word = 0;
    for (std::size_t i = last; i-- > first;) word = word << 8 | ByteAt(bytes_, i);
    return static_cast<std::uint32_t>(word >> (left_ % 8) & ((std::uint64_t{1} << bits) - 1));
  }
  bool overrun() const { return overrun_; }

 private:
  ByteSpan bytes_;
  std::size_t left_ = 0;
  bool overrun_ = false;
};

/// Returns the description of a table, as ReadCounts reads it. REQUIRES: no count is 0.
std::string DescribeCounts(std::span<const std::int16_t> counts, int log) {
  std::string out;
  std::size_t used = 0;
  auto write = [&](std::uint32_t value, int bits) {
    for (int i = 0; i < bits; ++i, ++used) {
      if (used % 8 == 0) out += '\0';
      out.back() = static_cast<char>(static_cast<unsigned char>(out.back()) | ((value >> i & 1U) << (used % 8)));
    }
  };
  write(static_cast<std::uint32_t>(log - kSmallestLog), 4);
  std::uint32_t remaining = 1U << log;
  for (std::int16_t count : counts) {
    const int bits = std::bit_width(remaining + 1);
    const std::uint32_t half = 1U << (bits - 1), short_ones = 2 * half - 1 - (remaining + 1);
    const auto value = static_cast<std::uint32_t>(count + 1);
    if (value < short_ones) {
      write(value, bits - 1);
    } else {
      write(value >= half ? value + short_ones : value, bits);
    }
    remaining -= static_cast<std::uint32_t>(count < 0 ? -count : count);
  }
  return out;
}

/// Reads the number of cells that each code has in a table. -1: one cell, for a code of probability below 1.
Status ReadCounts(ForwardBits& bits, int log, std::size_t most, std::vector<std::int16_t>& counts) {
  std::uint32_t remaining = 1U << log;
  while (remaining > 0) {
    const int width = std::bit_width(remaining + 1);
    const std::uint32_t half = 1U << (width - 1), short_ones = 2 * half - 1 - (remaining + 1);
    std::uint32_t value = bits.Peek(width);
    if ((value & (half - 1)) < short_ones) {
      value &= half - 1;
      bits.Skip(width - 1);
    } else {
      if (value >= half) value -= short_ones;
      bits.Skip(width);
    }
    const int count = static_cast<int>(value) - 1;
    const auto cells = static_cast<std::uint32_t>(count < 0 ? 1 : count);
    if (cells > remaining) return Damaged("table has too many cells");
    remaining -= cells;
    counts.push_back(static_cast<std::int16_t>(count));
    for (std::uint32_t zeros = count == 0 ? 3 : 0; zeros == 3;) {
      zeros = bits.Read(2);
      counts.insert(counts.end(), zeros, 0);
      if (counts.size() > most) break;
    }
    if (counts.size() > most) return Damaged("table has too many codes");
  }
  return {};
}

}  // namespace

const ZstdTables::FseTable& ZstdTables::Predefined(TableKind kind) {
  auto make = [](std::span<const std::int16_t> counts, int log) {
    return FseTable{.description = DescribeCounts(counts, log), .counts = {counts.begin(), counts.end()}, .log = log};
  };
  static const std::array<FseTable, kTableKinds> kTables = {make(kLiteralLengthCounts, 6), make(kOffsetCounts, 5),
                                                            make(kMatchLengthCounts, 6)};
  return kTables[kind];
}

Result<ZstdTables::FseTable> ZstdTables::ReadTable(TableKind kind, ByteSpan& rest) {
  ForwardBits bits(rest);
  FseTable table{.log = kSmallestLog + static_cast<int>(bits.Read(4))};
  if (table.log > kLargestLog[kind]) return Damaged("table is too large");
  MR_TRY(ReadCounts(bits, table.log, kLargestCode[kind] + 1U, table.counts));
  table.description = AsText(MR_TRY(TakeBytes(rest, bits.used_bytes())));
  return table;
}

std::vector<ZstdTables::FseCell> ZstdTables::Spread(const FseTable& table) {
  if (table.description.empty()) return {{.symbol = table.symbol}};
  const std::size_t size = std::size_t{1} << table.log;
  std::vector<FseCell> cells(size);
  std::vector<std::uint16_t> next(table.counts.size());
  std::size_t high = size;
  for (std::size_t code = 0; code < table.counts.size(); ++code) {
    next[code] = static_cast<std::uint16_t>(std::max<int>(table.counts[code], 1));
    if (table.counts[code] < 0) cells[--high].symbol = static_cast<std::uint8_t>(code);
  }
  const std::size_t step = (size >> 1) + (size >> 3) + 3;
  std::size_t at = 0;
  for (std::size_t code = 0; code < table.counts.size(); ++code) {
    for (int i = 0; i < table.counts[code]; ++i) {
      cells[at].symbol = static_cast<std::uint8_t>(code);
      do {
        at = (at + step) & (size - 1);
      } while (at >= high);
    }
  }
  for (FseCell& cell : cells) {
    const std::uint32_t state = next[cell.symbol]++;
    cell.bits = static_cast<std::uint8_t>(table.log + 1 - std::bit_width(state));
    cell.next = static_cast<std::uint16_t>((state << cell.bits) - size);
  }
  return cells;
}

Status ZstdTables::ReadLiterals(ByteSpan& rest) {
  if (rest.empty()) return Damaged("literals are missing");
  enum LiteralsType { kRaw, kOneByte, kCompressed, kTreeless };
  const std::uint32_t type = ByteAt(rest, 0) & 3, form = ByteAt(rest, 0) >> 2 & 3;
  auto header = [&](std::size_t bytes) -> Result<std::uint64_t> {
    std::uint64_t value = 0;
    ByteSpan taken = MR_TRY(TakeBytes(rest, bytes));
    for (std::size_t i = bytes; i-- > 0;) value = value << 8 | ByteAt(taken, i);
    return value;
  };
  if (type == kRaw || type == kOneByte) {
    constexpr std::array<std::size_t, 4> kBytes = {1, 2, 1, 3};
    const std::uint64_t literals = MR_TRY(header(kBytes[form])) >> (form % 2 == 0 ? 3 : 4);
    MR_TRY(TakeBytes(rest, type == kRaw ? literals : 1));
    return {};
  }
  constexpr std::array<std::size_t, 4> kBytes = {3, 3, 4, 5};
  constexpr std::array<int, 4> kBits = {10, 10, 14, 18};
  const std::uint64_t sizes = MR_TRY(header(kBytes[form])) >> 4;
  ByteSpan coded = MR_TRY(TakeBytes(rest, sizes >> kBits[form] & ((std::uint64_t{1} << kBits[form]) - 1)));
  if (type == kTreeless) return {};
  if (coded.empty()) return Damaged("literals have no code");
  const std::uint32_t first = ByteAt(coded, 0);
  huffman_ = AsText(MR_TRY(TakeBytes(coded, 1 + (first < 128 ? first : (first - 126) / 2))));
  return {};
}

Status ZstdTables::Follow(ByteSpan body, bool offsets) {
  MR_TRY(ReadLiterals(body));
  std::uint32_t sequences = ByteAt(MR_TRY(TakeBytes(body, 1)), 0);
  if (sequences == 255) {
    ByteSpan more = MR_TRY(TakeBytes(body, 2));
    sequences = ByteAt(more, 0) + (ByteAt(more, 1) << 8) + 0x7F00;
  } else if (sequences >= 128) {
    sequences = ((sequences - 128) << 8) + ByteAt(MR_TRY(TakeBytes(body, 1)), 0);
  }
  if (sequences == 0) return {};
  const std::uint32_t modes = ByteAt(MR_TRY(TakeBytes(body, 1)), 0);
  enum TableMode { kPredefined, kOneSymbol, kDescribed, kRepeated };
  for (int kind = 0; kind < kTableKinds; ++kind) {
    const std::uint32_t mode = modes >> (6 - 2 * kind) & 3;
    if (mode == kPredefined) tables_[kind] = Predefined(static_cast<TableKind>(kind));
    if (mode == kOneSymbol) {
      const ByteSpan symbol = MR_TRY(TakeBytes(body, 1));
      tables_[kind] = FseTable{.symbol = std::to_integer<std::uint8_t>(symbol[0])};
      if (tables_[kind].symbol > kLargestCode[kind]) return Damaged("only code is too large");
    }
    if (mode == kDescribed) tables_[kind] = MR_TRY(ReadTable(static_cast<TableKind>(kind), body));
    if (mode == kRepeated && entered_without_[kind]) {
      return Fail(Code::kUnsupported, "a zstd frame that repeats a table of one symbol cannot be read in parts");
    }
    entered_without_[kind] = false;
  }
  if (offsets || sequences <= kFewSequences) return FollowOffsets(body, sequences);
  offsets_ = {};
  return {};
}

Status ZstdTables::FollowOffsets(ByteSpan bits, std::uint32_t sequences) {
  const std::array<std::vector<FseCell>, kTableKinds> cells = {Spread(tables_[0]), Spread(tables_[1]),
                                                               Spread(tables_[2])};
  BackwardBits in(bits);
  std::array<std::uint32_t, kTableKinds> states{};
  for (int kind = 0; kind < kTableKinds; ++kind) states[kind] = in.Read(tables_[kind].log);
  for (std::uint32_t left = sequences; left > 0 && !in.overrun(); --left) {
    const FseCell& literals = cells[kLiteralLengths][states[kLiteralLengths]];
    const FseCell& offset = cells[kOffsets][states[kOffsets]];
    const FseCell& match = cells[kMatchLengths][states[kMatchLengths]];
    const std::uint64_t code = (std::uint64_t{1} << offset.symbol) + in.Read(offset.symbol);
    in.Read(match.symbol < 32 ? 0 : kMatchLengthBits[match.symbol - 32]);
    in.Read(literals.symbol < 16 ? 0 : kLiteralLengthBits[literals.symbol - 16]);
    Remember(code, literals.symbol == 0);
    if (left == 1) break;
    states[kLiteralLengths] = literals.next + in.Read(literals.bits);
    states[kMatchLengths] = match.next + in.Read(match.bits);
    states[kOffsets] = offset.next + in.Read(offset.bits);
  }
  return in.overrun() ? Damaged("sequences are cut off") : Status{};
}

void ZstdTables::Remember(std::uint64_t code, bool no_literals) {
  if (code > 3) {
    offsets_ = {static_cast<std::uint32_t>(code - 3), offsets_[0], offsets_[1]};
    return;
  }
  const std::size_t which = code - 1 + (no_literals ? 1 : 0);
  const std::uint32_t latest = which < 3 ? offsets_[which] : std::max(offsets_[0], 1U) - 1;
  if (which >= 2) offsets_[2] = offsets_[1];
  if (which >= 1) offsets_[1] = offsets_[0];
  offsets_[0] = latest;
}

bool ZstdTables::Complete(std::size_t window) const {
  return std::ranges::all_of(offsets_, [&](std::uint32_t offset) { return offset > 0 && offset <= window; });
}

std::string ZstdTables::Dictionary(std::string_view window) {
  std::string out("\x37\xa4\x30\xec\x01\x00\x00\x00", 8);
  // A dictionary must have every table. Blocks cannot repeat a table that no block has used, so any table will do.
  out += huffman_.empty() ? std::string_view("\x80\x10", 2) : std::string_view(huffman_);
  for (TableKind kind : {kOffsets, kMatchLengths, kLiteralLengths}) {
    entered_without_[kind] = tables_[kind].description.empty();
    out += entered_without_[kind] ? Predefined(kind).description : tables_[kind].description;
  }
  for (std::uint32_t offset : offsets_) {
    for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(offset >> shift & 0xff);
  }
  return out.append(window);
}

}  // namespace millrace::data
