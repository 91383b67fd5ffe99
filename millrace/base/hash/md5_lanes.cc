#include "millrace/base/hash/md5_lanes.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

namespace millrace {
namespace {

using Words4 = std::uint32_t __attribute__((vector_size(16)));
using Words8 = std::uint32_t __attribute__((vector_size(32)));
using Words16 = std::uint32_t __attribute__((vector_size(64)));
static_assert(std::endian::native == std::endian::little, "MD5 reads its words in little-endian order");

template <class Vector>
constexpr std::size_t kWidth = sizeof(Vector) / sizeof(std::uint32_t);

/// floor(2^32 · |sin(i)|) of RFC 1321 section 3.4.
constexpr std::array<std::uint32_t, 64> kSines{
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391};

#define MR_MD5_ALWAYS_INLINE __attribute__((always_inline)) inline

/// One of the 64 operations: a = b + rotate(a + f(b, c, d) + word + sine).
template <int kRound, class Vector>
MR_MD5_ALWAYS_INLINE void Step(Vector& a, const Vector& b, const Vector& c, const Vector& d, const Vector& word,
                               std::uint32_t sine, int rotation) {
  Vector mixed;
  if constexpr (kRound == 0) mixed = d ^ (b & (c ^ d));
  if constexpr (kRound == 1) mixed = c ^ (d & (b ^ c));
  if constexpr (kRound == 2) mixed = b ^ c ^ d;
  if constexpr (kRound == 3) mixed = c ^ (b | ~d);
  Vector sum = a + (word + sine) + mixed;
  a = b + ((sum << rotation) | (sum >> (32 - rotation)));
}

/// Does four operations of a round, the first of them number `kIndex`, for each group of lanes. The operations of one
/// group wait for each other; those of another group fill the gaps. Operation i takes word first + stride · i.
template <int kRound, int kIndex, class Vector, std::size_t kGroups>
MR_MD5_ALWAYS_INLINE void FourSteps(Vector (&s)[kGroups][4], const Vector (&words)[kGroups][16]) {
  constexpr int kRotations[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
  constexpr int kFirst[4] = {0, 1, 5, 0}, kStride[4] = {1, 5, 3, 7};
  constexpr int r0 = kRotations[kRound][0], r1 = kRotations[kRound][1], r2 = kRotations[kRound][2],
                r3 = kRotations[kRound][3];
  constexpr int w0 = (kFirst[kRound] + kStride[kRound] * kIndex) & 15, w1 = (w0 + kStride[kRound]) & 15,
                w2 = (w1 + kStride[kRound]) & 15, w3 = (w2 + kStride[kRound]) & 15;
  constexpr std::size_t k = 16 * kRound + kIndex;
#pragma GCC unroll 4
  for (std::size_t g = 0; g < kGroups; ++g) {
    Step<kRound>(s[g][0], s[g][1], s[g][2], s[g][3], words[g][w0], kSines[k], r0);
    Step<kRound>(s[g][3], s[g][0], s[g][1], s[g][2], words[g][w1], kSines[k + 1], r1);
    Step<kRound>(s[g][2], s[g][3], s[g][0], s[g][1], words[g][w2], kSines[k + 2], r2);
    Step<kRound>(s[g][1], s[g][2], s[g][3], s[g][0], words[g][w3], kSines[k + 3], r3);
  }
}

template <int kRound, class Vector, std::size_t kGroups>
MR_MD5_ALWAYS_INLINE void Round(Vector (&s)[kGroups][4], const Vector (&words)[kGroups][16]) {
  FourSteps<kRound, 0>(s, words);
  FourSteps<kRound, 4>(s, words);
  FourSteps<kRound, 8>(s, words);
  FourSteps<kRound, 12>(s, words);
}

template <class Vector, std::size_t kGroups>
MR_MD5_ALWAYS_INLINE void Advance(Vector (&state)[kGroups][4], const Vector (&words)[kGroups][16]) {
  Vector next[kGroups][4];
  std::memcpy(next, state, sizeof next);
  Round<0>(next, words);
  Round<1>(next, words);
  Round<2>(next, words);
  Round<3>(next, words);
  for (std::size_t g = 0; g < kGroups; ++g) {
    for (std::size_t i = 0; i < 4; ++i) state[g][i] += next[g][i];
  }
}

// Sets `to` to the lower or upper halves of two vectors, interleaved.
MR_MD5_ALWAYS_INLINE void TakeLower(Words4& to, const Words4& a, const Words4& b) {
  to = __builtin_shufflevector(a, b, 0, 4, 1, 5);
}
MR_MD5_ALWAYS_INLINE void TakeUpper(Words4& to, const Words4& a, const Words4& b) {
  to = __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
MR_MD5_ALWAYS_INLINE void TakeLower(Words8& to, const Words8& a, const Words8& b) {
  to = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
MR_MD5_ALWAYS_INLINE void TakeUpper(Words8& to, const Words8& a, const Words8& b) {
  to = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
MR_MD5_ALWAYS_INLINE void TakeLower(Words16& to, const Words16& a, const Words16& b) {
  to = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
MR_MD5_ALWAYS_INLINE void TakeUpper(Words16& to, const Words16& a, const Words16& b) {
  to = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/// Transposes a square of words. Each pass rotates the bits of the index (row, column) by one position.
template <class Vector>
MR_MD5_ALWAYS_INLINE void Transpose(Vector (&rows)[kWidth<Vector>]) {
  constexpr std::size_t kHalf = kWidth<Vector> / 2;
#pragma GCC unroll 4
  for (std::size_t pass = 1; pass < kWidth<Vector>; pass *= 2) {
    Vector turned[kWidth<Vector>];
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kHalf; ++i) {
      TakeLower(turned[2 * i], rows[i], rows[i + kHalf]);
      TakeUpper(turned[2 * i + 1], rows[i], rows[i + kHalf]);
    }
    std::memcpy(rows, turned, sizeof turned);
  }
}

/// Advances up to kGroups · kWidth lanes. A vector has one word of each lane of its group.
template <class Vector, std::size_t kGroups>
MR_MD5_ALWAYS_INLINE void CompressWide(std::span<const Md5Lane> lanes, std::size_t blocks) {
  constexpr std::size_t kLanes = kWidth<Vector>;
  // Unused lanes repeat the first lane's bytes. Their result is dropped.
  const std::byte* data[kGroups][kLanes];
  alignas(Vector) std::uint32_t gathered[kGroups][4][kLanes];
  for (std::size_t lane = 0; lane < kGroups * kLanes; ++lane) {
    const Md5Lane& from = lanes[lane < lanes.size() ? lane : 0];
    data[lane / kLanes][lane % kLanes] = from.data;
    for (std::size_t i = 0; i < 4; ++i) gathered[lane / kLanes][i][lane % kLanes] = from.state->words[i];
  }
  Vector state[kGroups][4];
  std::memcpy(state, gathered, sizeof state);
  for (std::size_t block = 0; block < blocks; ++block) {
    Vector words[kGroups][16];
#pragma GCC unroll 4
    for (std::size_t g = 0; g < kGroups; ++g) {
#pragma GCC unroll 4
      for (std::size_t first = 0; first < 16; first += kLanes) {
        Vector square[kLanes];
#pragma GCC unroll 16
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
          const std::byte* from = data[g][lane] + block * kMd5BlockBytes + first * sizeof(std::uint32_t);
          std::memcpy(&square[lane], from, sizeof(Vector));
        }
        Transpose(square);
        std::memcpy(&words[g][first], square, sizeof square);
      }
    }
    Advance(state, words);
  }
  std::memcpy(gathered, state, sizeof state);
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    for (std::size_t i = 0; i < 4; ++i) lanes[lane].state->words[i] = gathered[lane / kLanes][i][lane % kLanes];
  }
}

void CompressOne(const Md5Lane& lane, std::size_t blocks) {
  std::uint32_t state[1][4];
  std::copy(lane.state->words.begin(), lane.state->words.end(), state[0]);
  for (std::size_t block = 0; block < blocks; ++block) {
    std::uint32_t words[1][16];
    std::memcpy(words, lane.data + block * kMd5BlockBytes, sizeof words);
    Advance(state, words);
  }
  std::copy(std::begin(state[0]), std::end(state[0]), lane.state->words.begin());
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512vl"))) void Compress16Avx512(std::span<const Md5Lane> lanes, std::size_t blocks) {
  CompressWide<Words16, 1>(lanes, blocks);
}
__attribute__((target("avx512f,avx512vl"))) void Compress8Avx512(std::span<const Md5Lane> lanes, std::size_t blocks) {
  CompressWide<Words8, 1>(lanes, blocks);
}
__attribute__((target("avx2"))) void Compress16Avx2(std::span<const Md5Lane> lanes, std::size_t blocks) {
  CompressWide<Words8, 2>(lanes, blocks);
}
__attribute__((target("avx2"))) void Compress8Avx2(std::span<const Md5Lane> lanes, std::size_t blocks) {
  CompressWide<Words8, 1>(lanes, blocks);
}
#endif
void Compress16(std::span<const Md5Lane> lanes, std::size_t blocks) { CompressWide<Words4, 4>(lanes, blocks); }
void Compress8(std::span<const Md5Lane> lanes, std::size_t blocks) { CompressWide<Words4, 2>(lanes, blocks); }

/// Eight lanes take half the work of sixteen.
constexpr std::size_t kHalfLanes = kMd5Lanes / 2;
template <auto kCompress8, auto kCompress16>
void CompressBySize(std::span<const Md5Lane> lanes, std::size_t blocks) {
  lanes.size() > kHalfLanes ? kCompress16(lanes, blocks) : kCompress8(lanes, blocks);
}

std::vector<Md5Variant> FindVariants() {
  std::vector<Md5Variant> variants;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl"))
    variants.push_back({"AVX-512", &CompressBySize<Compress8Avx512, Compress16Avx512>});
  if (__builtin_cpu_supports("avx2")) variants.push_back({"AVX2", &CompressBySize<Compress8Avx2, Compress16Avx2>});
#endif
  variants.push_back({"128-bit vectors", &CompressBySize<Compress8, Compress16>});
  return variants;
}

}  // namespace

std::span<const Md5Variant> Md5Variants() {
  static const std::vector<Md5Variant> variants = FindVariants();
  return variants;
}

void Md5Compress(std::span<const Md5Lane> lanes, std::size_t blocks) {
  if (lanes.size() == 1) return CompressOne(lanes[0], blocks);
  if (!lanes.empty()) Md5Variants().front().compress(lanes, blocks);
}

Md5Digest Md5Finish(Md5State state, ByteSpan tail, std::uint64_t message_bytes) {
  const std::size_t whole = tail.size() / kMd5BlockBytes;
  CompressOne({&state, tail.data()}, whole);
  // A one bit, zeros, and the length in bits at the end of a block.
  std::array<std::byte, 2 * kMd5BlockBytes> last{};
  const ByteSpan rest = tail.subspan(whole * kMd5BlockBytes);
  std::copy(rest.begin(), rest.end(), last.begin());
  last[rest.size()] = std::byte{0x80};
  const std::size_t blocks = rest.size() + 1 + sizeof(std::uint64_t) > kMd5BlockBytes ? 2 : 1;
  const std::uint64_t bits = message_bytes * 8;
  std::memcpy(last.data() + blocks * kMd5BlockBytes - sizeof bits, &bits, sizeof bits);
  CompressOne({&state, last.data()}, blocks);
  Md5Digest digest;
  std::memcpy(digest.data(), state.words.data(), digest.size());
  return digest;
}

}  // namespace millrace
