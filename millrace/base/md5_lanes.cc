#include "millrace/base/md5_lanes.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace millrace {
namespace {

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

/// Four operations from operation `kIndex` of the round on. Operation i takes word first + stride · i.
template <int kRound, int kIndex, class Vector>
MR_MD5_ALWAYS_INLINE void FourSteps(Vector (&s)[4], const Vector* words) {
  constexpr int kRotations[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
  constexpr int kFirst[4] = {0, 1, 5, 0}, kStride[4] = {1, 5, 3, 7};
  constexpr int r0 = kRotations[kRound][0], r1 = kRotations[kRound][1], r2 = kRotations[kRound][2],
                r3 = kRotations[kRound][3];
  constexpr int w0 = (kFirst[kRound] + kStride[kRound] * kIndex) & 15, w1 = (w0 + kStride[kRound]) & 15,
                w2 = (w1 + kStride[kRound]) & 15, w3 = (w2 + kStride[kRound]) & 15;
  constexpr std::size_t k = 16 * kRound + kIndex;
  Step<kRound>(s[0], s[1], s[2], s[3], words[w0], kSines[k], r0);
  Step<kRound>(s[3], s[0], s[1], s[2], words[w1], kSines[k + 1], r1);
  Step<kRound>(s[2], s[3], s[0], s[1], words[w2], kSines[k + 2], r2);
  Step<kRound>(s[1], s[2], s[3], s[0], words[w3], kSines[k + 3], r3);
}

template <int kRound, class Vector>
MR_MD5_ALWAYS_INLINE void Round(Vector (&s)[4], const Vector* words) {
  FourSteps<kRound, 0>(s, words);
  FourSteps<kRound, 4>(s, words);
  FourSteps<kRound, 8>(s, words);
  FourSteps<kRound, 12>(s, words);
}

template <class Vector>
MR_MD5_ALWAYS_INLINE void CompressWide(std::span<const Md5Lane> lanes, std::size_t blocks) {
  constexpr std::size_t kLanes = kWidth<Vector>;
  // Lanes that nobody has repeat the first lane's bytes, and what comes of them is dropped.
  const std::byte* data[kLanes];
  alignas(Vector) std::uint32_t gathered[4][kLanes];
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const Md5Lane& from = lanes[lane < lanes.size() ? lane : 0];
    data[lane] = from.data;
    for (std::size_t i = 0; i < 4; ++i) gathered[i][lane] = from.state->words[i];
  }
  Vector state[4];
  std::memcpy(state, gathered, sizeof state);
  for (std::size_t block = 0; block < blocks; ++block) {
    alignas(Vector) std::uint32_t transposed[16][kLanes];
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      std::uint32_t row[16];
      std::memcpy(row, data[lane] + block * kMd5BlockBytes, sizeof row);
#pragma GCC unroll 16
      for (std::size_t i = 0; i < 16; ++i) transposed[i][lane] = row[i];
    }
    Vector words[16];
    std::memcpy(words, transposed, sizeof words);
    Vector next[4] = {state[0], state[1], state[2], state[3]};
    Round<0>(next, words);
    Round<1>(next, words);
    Round<2>(next, words);
    Round<3>(next, words);
    for (std::size_t i = 0; i < 4; ++i) state[i] += next[i];
  }
  std::memcpy(gathered, state, sizeof state);
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    for (std::size_t i = 0; i < 4; ++i) lanes[lane].state->words[i] = gathered[i][lane];
  }
}

void CompressOne(const Md5Lane& lane, std::size_t blocks) {
  std::uint32_t state[4];
  std::copy(lane.state->words.begin(), lane.state->words.end(), state);
  for (std::size_t block = 0; block < blocks; ++block) {
    std::uint32_t words[16], next[4];
    std::memcpy(words, lane.data + block * kMd5BlockBytes, sizeof words);
    std::copy(std::begin(state), std::end(state), next);
    Round<0>(next, words);
    Round<1>(next, words);
    Round<2>(next, words);
    Round<3>(next, words);
    for (std::size_t i = 0; i < 4; ++i) state[i] += next[i];
  }
  std::copy(std::begin(state), std::end(state), lane.state->words.begin());
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512vl"))) void Compress16Avx512(std::span<const Md5Lane> lanes, std::size_t blocks) {
  CompressWide<Words16>(lanes, blocks);
}
__attribute__((target("avx512f,avx512vl"))) void Compress8Avx512(std::span<const Md5Lane> lanes, std::size_t blocks) {
  CompressWide<Words8>(lanes, blocks);
}
__attribute__((target("avx2"))) void Compress16Avx2(std::span<const Md5Lane> lanes, std::size_t blocks) {
  CompressWide<Words16>(lanes, blocks);
}
__attribute__((target("avx2"))) void Compress8Avx2(std::span<const Md5Lane> lanes, std::size_t blocks) {
  CompressWide<Words8>(lanes, blocks);
}
#endif
void Compress16(std::span<const Md5Lane> lanes, std::size_t blocks) { CompressWide<Words16>(lanes, blocks); }
void Compress8(std::span<const Md5Lane> lanes, std::size_t blocks) { CompressWide<Words8>(lanes, blocks); }

using Compressor = void (*)(std::span<const Md5Lane>, std::size_t);

/// The best way for at most 8 lanes, and for more.
std::array<Compressor, 2> Choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl"))
    return {Compress8Avx512, Compress16Avx512};
  if (__builtin_cpu_supports("avx2")) return {Compress8Avx2, Compress16Avx2};
#endif
  return {Compress8, Compress16};
}

}  // namespace

void Md5Compress(std::span<const Md5Lane> lanes, std::size_t blocks) {
  static const std::array<Compressor, 2> compressors = Choose();
  if (lanes.size() == 1) return CompressOne(lanes[0], blocks);
  if (!lanes.empty()) compressors[lanes.size() > 8](lanes, blocks);
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
