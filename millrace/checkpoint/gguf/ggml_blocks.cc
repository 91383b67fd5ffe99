// The layouts are those of ggml-common.h: blocks of 32 numbers with a scale, and super-blocks of 256 numbers whose
// parts have scales of a few bits. Names of members are ggml's, too: `d` is the scale, `m` the minimum, `qs` the low
// bits of the numbers, `qh` their high bits.
#include "millrace/checkpoint/gguf/ggml_blocks.h"

#include <array>
#include <cmath>
#include <cstdint>

#include "millrace/checkpoint/format/half.h"

namespace millrace::checkpoint {
namespace {

constexpr std::size_t kHalfPart = 16, kPart = 32, kWhole = 256;

// Numbers of four bits that lie closer near zero, and those of OCP's MX format in halves.
constexpr std::array<std::int8_t, 16> kIq4 = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr std::array<std::int8_t, 16> kFp4 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

int ByteOf(std::byte byte) { return static_cast<int>(byte); }
int SignedByte(std::byte byte) { return static_cast<std::int8_t>(byte); }
float HalfAt(const std::byte* at) { return HalfToFloat(LoadLittle<std::uint16_t>(at)); }

/// Numbers of five bits: four in `qs`, the fifth in the bits of `qh`.
void FiveBits(const std::byte* qh, const std::byte* qs, float d, float m, int offset, std::span<float> into) {
  const auto high = LoadLittle<std::uint32_t>(qh);
  for (std::size_t j = 0; j < kHalfPart; ++j) {
    const int low = static_cast<int>(high >> j & 1) << 4, upper = static_cast<int>(high >> (j + kHalfPart) & 1) << 4;
    into[j] = static_cast<float>(((ByteOf(qs[j]) & 15) | low) - offset) * d + m;
    into[j + kHalfPart] = static_cast<float>(((ByteOf(qs[j]) >> 4) | upper) - offset) * d + m;
  }
}

void FromTable(const std::array<std::int8_t, 16>& table, const std::byte* qs, float d, std::span<float> into) {
  for (std::size_t j = 0; j < kHalfPart; ++j) {
    into[j] = d * static_cast<float>(table[static_cast<std::size_t>(ByteOf(qs[j]) & 15)]);
    into[j + kHalfPart] = d * static_cast<float>(table[static_cast<std::size_t>(ByteOf(qs[j]) >> 4)]);
  }
}

void Q2K(const std::byte* block, std::span<float> into) {
  const std::byte *scales = block, *qs = block + 16;
  const float d = HalfAt(block + 80), m = HalfAt(block + 82);
  for (std::size_t i = 0; i < kWhole; ++i) {
    const int scale = ByteOf(scales[i / 16]);
    const std::size_t shift = 2 * (i % 128 / 32);
    const int number = ByteOf(qs[i / 128 * 32 + i % 32]) >> shift & 3;
    into[i] = d * static_cast<float>(scale & 15) * static_cast<float>(number) - m * static_cast<float>(scale >> 4);
  }
}

void Q3K(const std::byte* block, std::span<float> into) {
  const std::byte *high = block, *qs = block + 32, *scales = block + 96;
  const float d = HalfAt(block + 108);
  for (std::size_t i = 0; i < kWhole; ++i) {
    const std::size_t part = i / 16;
    const int low = ByteOf(scales[part % 8]) >> (part < 8 ? 0 : 4) & 15;
    const int scale = (low | (ByteOf(scales[8 + part % 4]) >> (2 * (part / 4)) & 3) << 4) - 32;
    const int number = ByteOf(qs[i / 128 * 32 + i % 32]) >> (2 * (i % 128 / 32)) & 3;
    const bool has_high = (ByteOf(high[i % 32]) >> (i / 32) & 1) != 0;
    into[i] = d * static_cast<float>(scale) * static_cast<float>(number - (has_high ? 0 : 4));
  }
}

/// The scale and the minimum of part `j` of 8, of six bits each.
std::pair<int, int> ScaleAndMinimum(const std::byte* scales, std::size_t j) {
  if (j < 4) return {ByteOf(scales[j]) & 63, ByteOf(scales[j + 4]) & 63};
  return {(ByteOf(scales[j + 4]) & 15) | ByteOf(scales[j - 4]) >> 6 << 4,
          ByteOf(scales[j + 4]) >> 4 | ByteOf(scales[j]) >> 6 << 4};
}

void Q4KOrQ5K(const std::byte* block, bool has_fifth_bit, std::span<float> into) {
  const float d = HalfAt(block), m = HalfAt(block + 2);
  const std::byte *scales = block + 4, *qh = block + 16, *qs = block + (has_fifth_bit ? 48 : 16);
  for (std::size_t i = 0; i < kWhole; ++i) {
    const std::size_t part = i / kPart, in_pair = i / 64 * 32 + i % 32;
    const auto [scale, minimum] = ScaleAndMinimum(scales, part);
    int number = ByteOf(qs[in_pair]) >> (4 * (part % 2)) & 15;
    if (has_fifth_bit) number |= (ByteOf(qh[i % 32]) >> part & 1) << 4;
    into[i] = d * static_cast<float>(scale) * static_cast<float>(number) - m * static_cast<float>(minimum);
  }
}

void Q6K(const std::byte* block, std::span<float> into) {
  const std::byte *ql = block, *qh = block + 128, *scales = block + 192;
  const float d = HalfAt(block + 208);
  for (std::size_t i = 0; i < kWhole; ++i) {
    // 64 bytes hold 128 numbers: their low halves are the first 64 numbers, their high halves the others.
    const std::size_t within = i % 128;
    const int low = ByteOf(ql[i / 128 * 64 + within % 64]) >> (within < 64 ? 0 : 4) & 15;
    const int high = ByteOf(qh[i / 128 * 32 + within % 32]) >> (2 * (within / 32)) & 3;
    into[i] = d * static_cast<float>(SignedByte(scales[i / 16])) * static_cast<float>((low | high << 4) - 32);
  }
}

void Iq4Xs(const std::byte* block, std::span<float> into) {
  const float d = HalfAt(block);
  const auto high = LoadLittle<std::uint16_t>(block + 2);
  const std::byte *low = block + 4, *qs = block + 8;
  for (std::size_t part = 0; part < kWhole / kPart; ++part) {
    const int scale = (ByteOf(low[part / 2]) >> (4 * (part % 2)) & 15) | (high >> (2 * part) & 3) << 4;
    FromTable(kIq4, qs + part * kHalfPart, d * static_cast<float>(scale - 32), into.subspan(part * kPart, kPart));
  }
}

}  // namespace

void DequantizeBlock(GgmlType type, const std::byte* block, std::span<float> into) {
  switch (type) {
    case GgmlType::kQ4_1: {
      const float d = HalfAt(block), m = HalfAt(block + 2);
      for (std::size_t j = 0; j < kHalfPart; ++j) {
        into[j] = static_cast<float>(ByteOf(block[4 + j]) & 15) * d + m;
        into[j + kHalfPart] = static_cast<float>(ByteOf(block[4 + j]) >> 4) * d + m;
      }
      return;
    }
    case GgmlType::kQ5_0:
      return FiveBits(block + 2, block + 6, HalfAt(block), 0, 16, into);
    case GgmlType::kQ5_1:
      return FiveBits(block + 4, block + 8, HalfAt(block), HalfAt(block + 2), 0, into);
    case GgmlType::kQ2_K:
      return Q2K(block, into);
    case GgmlType::kQ3_K:
      return Q3K(block, into);
    case GgmlType::kQ4_K:
      return Q4KOrQ5K(block, false, into);
    case GgmlType::kQ5_K:
      return Q4KOrQ5K(block, true, into);
    case GgmlType::kQ6_K:
      return Q6K(block, into);
    case GgmlType::kIQ4_NL:
      return FromTable(kIq4, block + 2, HalfAt(block), into);
    case GgmlType::kIQ4_XS:
      return Iq4Xs(block, into);
    case GgmlType::kMXFP4:
      return FromTable(kFp4, block + 1, std::ldexp(1.0F, ByteOf(block[0]) - 128), into);
    case GgmlType::kF32:
    case GgmlType::kF16:
    case GgmlType::kBF16:
    case GgmlType::kQ4_0:
    case GgmlType::kQ8_0:
      return;
  }
}

}  // namespace millrace::checkpoint
