#include "millrace/base/hash/crc.h"

#include <array>
#include <cstring>

// The instructions of two architectures: a CRC-32C of some bytes, and products of polynomials (carry-less).
#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>
#define MR_CRC32C __attribute__((target("sse4.2")))
#define MR_CARRY_LESS __attribute__((target("pclmul,sse4.2")))
#elif defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__)
#include <sys/auxv.h>
#define MR_CRC32C __attribute__((target("+crc")))
#define MR_CARRY_LESS __attribute__((target("+crypto")))
#include <arm_acle.h>
#include <arm_neon.h>
#endif

namespace millrace {
namespace {

// Both checks are reflected: bit i of a word is the coefficient of x^(N-1-i), so "multiply by x" is a right shift.
// CRC-32C: RFC 3720 section 12.1. CRC-64/NVME: "64b CRC" of the NVM Express NVM Command Set Specification.
constexpr std::uint32_t kPoly32c = 0x82f63b78;
constexpr std::uint64_t kPoly64Nvme = 0x9a6c9329ac4bc9b5;

template <class Word>
constexpr Word kTopBit = Word{1} << (sizeof(Word) * 8 - 1);

/// a·b modulo the polynomial.
template <class Word>
constexpr Word Multiply(Word a, Word b, Word poly) {
  Word product = 0;
  for (Word bit = kTopBit<Word>; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b >> 1) ^ ((b & 1) ? poly : 0);
  }
  return product;
}

/// powers[k] = x^(8·2^k): what 2^k bytes of zeros do to a checksum.
template <class Word>
constexpr std::array<Word, 64> ZeroBytePowers(Word poly) {
  std::array<Word, 64> powers{};
  Word x8 = kTopBit<Word> >> 8;  // x^8
  for (auto& power : powers) {
    power = x8;
    x8 = Multiply(x8, x8, poly);
  }
  return powers;
}
constexpr auto kPowers32c = ZeroBytePowers<std::uint32_t>(kPoly32c);
constexpr auto kPowers64Nvme = ZeroBytePowers<std::uint64_t>(kPoly64Nvme);

template <class Word>
constexpr Word XToZeroBytes(std::uint64_t bytes, const std::array<Word, 64>& powers, Word poly) {
  Word factor = kTopBit<Word>;  // x^0
  for (int k = 0; bytes != 0; ++k, bytes >>= 1)
    if (bytes & 1) factor = Multiply(factor, powers[static_cast<std::size_t>(k)], poly);
  return factor;
}

/// tables[n][b]: the effect of byte b followed by n zero bytes; eight of them take a word at a time ("slicing").
template <class Word>
constexpr std::array<std::array<Word, 256>, 8> SliceTables(Word poly) {
  std::array<std::array<Word, 256>, 8> tables{};
  for (std::size_t b = 0; b < 256; ++b) {
    Word crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? poly : 0);
    tables[0][b] = crc;
  }
  for (std::size_t n = 1; n < 8; ++n)
    for (std::size_t b = 0; b < 256; ++b) tables[n][b] = (tables[n - 1][b] >> 8) ^ tables[0][tables[n - 1][b] & 0xff];
  return tables;
}
constexpr auto kTables32c = SliceTables<std::uint32_t>(kPoly32c);
constexpr auto kTables64Nvme = SliceTables<std::uint64_t>(kPoly64Nvme);

template <class Word>
Word Sliced(ByteSpan bytes, Word crc, const std::array<std::array<Word, 256>, 8>& tables) {
  const std::byte* p = bytes.data();
  std::size_t n = bytes.size();
  for (; n >= 8; n -= 8, p += 8) {
    std::uint64_t word = LoadLittle<std::uint64_t>(p) ^ crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= tables[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; n > 0; --n, ++p) crc = (crc >> 8) ^ tables[0][(crc ^ static_cast<Word>(*p)) & 0xff];
  return crc;
}

#if defined(MR_CRC32C)

#if defined(__x86_64__)
bool HasCrc32c() { return __builtin_cpu_supports("sse4.2"); }
bool HasCarryLess() { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.2"); }

MR_CRC32C inline std::uint64_t Crc32cOf(std::uint64_t crc, std::uint64_t word) { return _mm_crc32_u64(crc, word); }
MR_CRC32C inline std::uint64_t Crc32cOf(std::uint64_t crc, std::byte b) {
  return _mm_crc32_u8(static_cast<std::uint32_t>(crc), static_cast<std::uint8_t>(b));
}

using Words2 = __m128i;
MR_CARRY_LESS inline Words2 MakeWords2(std::uint64_t low, std::uint64_t high) {
  return _mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low));
}
MR_CARRY_LESS inline Words2 MultiplyLow(Words2 a, Words2 b) { return _mm_clmulepi64_si128(a, b, 0x00); }
MR_CARRY_LESS inline Words2 MultiplyHigh(Words2 a, Words2 b) { return _mm_clmulepi64_si128(a, b, 0x11); }
#else
bool HasCrc32c() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
bool HasCarryLess() { return (getauxval(AT_HWCAP) & HWCAP_PMULL) != 0; }

MR_CRC32C inline std::uint64_t Crc32cOf(std::uint64_t crc, std::uint64_t word) {
  return __crc32cd(static_cast<std::uint32_t>(crc), word);
}
MR_CRC32C inline std::uint64_t Crc32cOf(std::uint64_t crc, std::byte b) {
  return __crc32cb(static_cast<std::uint32_t>(crc), static_cast<std::uint8_t>(b));
}

using Words2 = uint64x2_t;
MR_CARRY_LESS inline Words2 MakeWords2(std::uint64_t low, std::uint64_t high) { return Words2{low, high}; }
MR_CARRY_LESS inline Words2 MultiplyLow(Words2 a, Words2 b) {
  return vreinterpretq_u64_p128(vmull_p64(vgetq_lane_u64(a, 0), vgetq_lane_u64(b, 0)));
}
MR_CARRY_LESS inline Words2 MultiplyHigh(Words2 a, Words2 b) {
  return vreinterpretq_u64_p128(vmull_high_p64(vreinterpretq_p64_u64(a), vreinterpretq_p64_u64(b)));
}
#endif

/// A linear map of a 32-bit checksum ("append kLane zero bytes") as four lookups.
using LaneShift = std::array<std::array<std::uint32_t, 256>, 4>;
constexpr LaneShift MakeLaneShift(std::uint64_t bytes) {
  LaneShift shift{};
  std::uint32_t factor = XToZeroBytes<std::uint32_t>(bytes, kPowers32c, kPoly32c);
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::uint32_t bit = 0; bit < 8; ++bit)
      shift[i][std::size_t{1} << bit] = Multiply<std::uint32_t>(factor, 1u << (8 * i + bit), kPoly32c);
    for (std::size_t b = 1; b < 256; ++b)
      if ((b & (b - 1)) != 0) shift[i][b] = shift[i][b & (b - 1)] ^ shift[i][b & (~b + 1)];
  }
  return shift;
}
template <std::size_t kLane>
constexpr LaneShift kLaneShift = MakeLaneShift(kLane);

template <std::size_t kLane>
std::uint32_t ShiftLane(std::uint32_t crc) {
  const LaneShift& shift = kLaneShift<kLane>;
  return shift[0][crc & 0xff] ^ shift[1][(crc >> 8) & 0xff] ^ shift[2][(crc >> 16) & 0xff] ^ shift[3][crc >> 24];
}

/// Advances over as many groups of three lanes as `n` bytes hold. The CRC instruction takes 8 bytes a cycle, but its
/// result comes after three cycles: three independent lanes keep it busy.
template <std::size_t kLane>
MR_CRC32C std::uint64_t ThreeLanes32c(const std::byte*& p, std::size_t& n, std::uint64_t crc) {
  for (; n >= 3 * kLane; n -= 3 * kLane, p += 3 * kLane) {
    std::uint64_t a = crc, b = 0, c = 0;
    for (std::size_t i = 0; i < kLane; i += 8) {
      a = Crc32cOf(a, LoadLittle<std::uint64_t>(p + i));
      b = Crc32cOf(b, LoadLittle<std::uint64_t>(p + kLane + i));
      c = Crc32cOf(c, LoadLittle<std::uint64_t>(p + 2 * kLane + i));
    }
    std::uint32_t ab = ShiftLane<kLane>(static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b);
    crc = ShiftLane<kLane>(ab) ^ c;
  }
  return crc;
}

MR_CRC32C std::uint32_t Hardware32c(ByteSpan bytes, std::uint32_t seed) {
  const std::byte* p = bytes.data();
  std::size_t n = bytes.size();
  std::uint64_t crc = ThreeLanes32c<2048>(p, n, seed);
  crc = ThreeLanes32c<256>(p, n, crc);  // libcurl hands over 16 KiB, a quarter of which is left here
  for (; n >= 8; n -= 8, p += 8) crc = Crc32cOf(crc, LoadLittle<std::uint64_t>(p));
  for (; n > 0; --n, ++p) crc = Crc32cOf(crc, *p);
  return static_cast<std::uint32_t>(crc);
}

/// x^n modulo the polynomial.
constexpr std::uint64_t XPower64Nvme(int n) {
  std::uint64_t power = kTopBit<std::uint64_t>;
  for (; n > 0; --n) power = (power >> 1) ^ ((power & 1) ? kPoly64Nvme : 0);
  return power;
}

/// Moves 16 bytes of a message `Bits` bits to the front of it: a 16-byte remainder that is the same modulo the
/// polynomial. Source: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel,
/// 2009). The carry-less product of two reflected words comes out one bit too low, hence the exponents less one.
template <int Bits>
MR_CARRY_LESS Words2 Fold64Nvme(Words2 remainder) {
  const Words2 factors = MakeWords2(XPower64Nvme(Bits + 63), XPower64Nvme(Bits - 1));
  return MultiplyLow(remainder, factors) ^ MultiplyHigh(remainder, factors);
}

/// Keeps four independent remainders, so that the multiplier never waits for a result.
MR_CARRY_LESS std::uint64_t Folded64Nvme(ByteSpan bytes, std::uint64_t crc) {
  constexpr std::size_t kStep = 64;  // four registers of 16 bytes
  if (bytes.size() < 2 * kStep) return Sliced<std::uint64_t>(bytes, crc, kTables64Nvme);
  auto load = [&](std::size_t from) {
    Words2 words;
    std::memcpy(&words, bytes.data() + from, sizeof words);
    return words;
  };
  Words2 lanes[4] = {load(0) ^ MakeWords2(crc, 0), load(16), load(32), load(48)};
  std::size_t at = kStep;
  for (; at + kStep <= bytes.size(); at += kStep) {
    for (std::size_t i = 0; i < 4; ++i) lanes[i] = Fold64Nvme<8 * kStep>(lanes[i]) ^ load(at + 16 * i);
  }
  Words2 remainder = lanes[0];
  for (std::size_t i = 1; i < 4; ++i) remainder = Fold64Nvme<128>(remainder) ^ lanes[i];
  std::byte last[16];
  std::memcpy(last, &remainder, sizeof last);
  return Sliced<std::uint64_t>(bytes.subspan(at), Sliced<std::uint64_t>(last, 0, kTables64Nvme), kTables64Nvme);
}
#endif

}  // namespace

std::uint32_t Crc32c(ByteSpan bytes, std::uint32_t seed) {
#if defined(MR_CRC32C)
  static const bool hardware = HasCrc32c();
  if (hardware) return ~Hardware32c(bytes, ~seed);
#endif
  return ~Sliced<std::uint32_t>(bytes, ~seed, kTables32c);
}

std::uint32_t Crc32cCombine(std::uint32_t a, std::uint32_t b, std::uint64_t length_of_b) {
  return Multiply(XToZeroBytes(length_of_b, kPowers32c, kPoly32c), a, kPoly32c) ^ b;
}

std::uint64_t Crc64Nvme(ByteSpan bytes, std::uint64_t seed) {
#if defined(MR_CARRY_LESS)
  static const bool hardware = HasCarryLess();
  if (hardware) return ~Folded64Nvme(bytes, ~seed);
#endif
  return ~Sliced<std::uint64_t>(bytes, ~seed, kTables64Nvme);
}

std::uint64_t Crc64NvmeCombine(std::uint64_t a, std::uint64_t b, std::uint64_t length_of_b) {
  return Multiply(XToZeroBytes(length_of_b, kPowers64Nvme, kPoly64Nvme), a, kPoly64Nvme) ^ b;
}

}  // namespace millrace
