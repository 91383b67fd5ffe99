// Cyclic redundancy checks used by S3, by checkpoints and by TensorBoard's event files.
#pragma once

#include <cstdint>

#include "millrace/base/bytes.h"

namespace millrace {

/// Returns the CRC-32C (Castagnoli; RFC 3720 B.4). `seed` is the CRC of the bytes before: Crc32c(b, Crc32c(a)) is the
/// CRC of a+b. Uses the processor's CRC instruction if it has one.
std::uint32_t Crc32c(ByteSpan bytes, std::uint32_t seed = 0);
/// Returns the CRC of a+b, given the CRCs `a` and `b` and the length of b in bytes. Takes O(log length).
std::uint32_t Crc32cCombine(std::uint32_t a, std::uint32_t b, std::uint64_t length_of_b);

/// Returns the CRC-64/NVME, the default full-object checksum of S3 clients since 2025. Arguments as for Crc32c(). Uses
/// carry-less multiplication if the processor has it.
std::uint64_t Crc64Nvme(ByteSpan bytes, std::uint64_t seed = 0);
std::uint64_t Crc64NvmeCombine(std::uint64_t a, std::uint64_t b, std::uint64_t length_of_b);

}  // namespace millrace
