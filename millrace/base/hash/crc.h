// Cyclic redundancy checks used by S3, by checkpoints and by TensorBoard's event files.
#pragma once

#include <cstdint>

#include "millrace/base/bytes.h"

namespace millrace {

/// CRC-32C (Castagnoli; RFC 3720 B.4). `seed` is the CRC of the bytes before, so Crc32c(b, Crc32c(a)) is that of a+b.
/// Uses the CPU's instruction where there is one.
std::uint32_t Crc32c(ByteSpan bytes, std::uint32_t seed = 0);
/// The CRC of a+b from those of a and of b and the length of b, in O(log length).
std::uint32_t Crc32cCombine(std::uint32_t a, std::uint32_t b, std::uint64_t length_of_b);

/// CRC-64/NVME, the default full-object checksum of S3 clients since 2025. Same conventions, and carry-less
/// multiplication where the CPU has it.
std::uint64_t Crc64Nvme(ByteSpan bytes, std::uint64_t seed = 0);
std::uint64_t Crc64NvmeCombine(std::uint64_t a, std::uint64_t b, std::uint64_t length_of_b);

}  // namespace millrace
