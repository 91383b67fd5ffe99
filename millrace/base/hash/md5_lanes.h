// MD5 of several streams at the same time. One vector instruction does a step of the algorithm for all streams. One
// stream alone cannot use vectors, since every step of MD5 needs the result of the step before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/hash/digest.h"

namespace millrace {

inline constexpr std::size_t kMd5BlockBytes = 64;  // RFC 1321 section 3.4
/// The maximum number of streams in one call: one AVX-512 register has a word of each. benchmarks/md5 measures it.
inline constexpr std::size_t kMd5Lanes = 16;

/// The chaining value of RFC 1321 section 3.3, initially that of an empty message.
struct Md5State {
  std::array<std::uint32_t, 4> words{0x67452301U, 0xefcdab89U, 0x98badcfeU, 0x10325476U};
};

/// One stream in a call: `state` advances over the bytes that begin at `data`. Borrows both.
struct Md5Lane {
  Md5State* state = nullptr;
  const std::byte* data = nullptr;
};

/// Advances each lane by `blocks` blocks of 64 bytes.
/// REQUIRES: lanes.size() <= kMd5Lanes; each lane has a state of its own.
/// Source: RFC 1321. Uses the first of Md5Variants(). One lane alone runs scalar code.
void Md5Compress(std::span<const Md5Lane> lanes, std::size_t blocks);

/// An implementation of Md5Compress() for one instruction set.
struct Md5Variant {
  std::string_view instruction_set;  ///< "AVX-512", "AVX2"; "128-bit vectors" (SSE2, NEON)
  /// REQUIRES: as for Md5Compress(); lanes is not empty.
  void (*compress)(std::span<const Md5Lane> lanes, std::size_t blocks);
};
/// Returns the implementations that this processor can run, the widest vectors first. For tests and benchmarks.
std::span<const Md5Variant> Md5Variants();

/// Returns the digest of a message of `message_bytes` bytes. `state` has advanced over all of it but `tail`, its end.
/// REQUIRES: message_bytes - tail.size() is a multiple of 64.
Md5Digest Md5Finish(Md5State state, ByteSpan tail, std::uint64_t message_bytes);

}  // namespace millrace
