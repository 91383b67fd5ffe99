// MD5 of several streams at the same time: each step of the algorithm is done for all streams by one vector
// instruction. One stream alone cannot use vectors, since every step of MD5 needs the result of the step before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "millrace/base/bytes.h"
#include "millrace/base/hash/digest.h"

namespace millrace {

inline constexpr std::size_t kMd5BlockBytes = 64;
/// The most streams that one call advances.
inline constexpr std::size_t kMd5Lanes = 16;

/// The chaining value of RFC 1321 section 3.3, initially that of an empty message.
struct Md5State {
  std::array<std::uint32_t, 4> words{0x67452301U, 0xefcdab89U, 0x98badcfeU, 0x10325476U};
};

/// One stream's share of a call: `state` advances over the bytes from `data` on.
struct Md5Lane {
  Md5State* state = nullptr;
  const std::byte* data = nullptr;
};

/// Advances each lane by `blocks` blocks of 64 bytes.
/// REQUIRES: lanes.size() <= kMd5Lanes; each lane has a state of its own.
/// Source: RFC 1321. Picks AVX-512, AVX2 or SSE2 by the processor; one lane alone runs scalar code.
void Md5Compress(std::span<const Md5Lane> lanes, std::size_t blocks);

/// The digest of a message of `message_bytes` bytes: `state` has seen all of it but `tail`, its last bytes.
/// REQUIRES: message_bytes - tail.size() is a multiple of 64.
Md5Digest Md5Finish(Md5State state, ByteSpan tail, std::uint64_t message_bytes);

}  // namespace millrace
