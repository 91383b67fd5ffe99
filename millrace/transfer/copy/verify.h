// Holding local bytes against what a store says about an object.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/hash/digest.h"
#include "millrace/base/result.h"
#include "millrace/object/store.h"

namespace millrace::transfer {

/// The checksum's form for a CRC-32C.
object::Checksum Crc32cChecksum(std::uint32_t crc);

/// Reads the first `size` bytes of the file and fails with kCorrupt unless they have the checksum, which covers the
/// bytes themselves. kNone holds for everything. `what` is for messages.
Status VerifyFile(int fd, std::uint64_t size, const object::Checksum& expected, const std::string& what,
                  const object::Call& call);

/// Likewise against a checksum of an object's parts, which needs their sizes, of which the store is asked. False when
/// it does not tell: nothing can be said then. kStale when the object was replaced.
Result<bool> VerifyParts(int fd, object::Store& store, const object::ObjectInfo& info, const object::Checksum& expected,
                         const object::Call& call);

/// The MD5s of an object's consecutive parts, each of `part_bytes` but the last.
using PartDigests = std::vector<Md5Digest>;

/// How the parts were cut that an MD5 of parts covers, as nearly every client cuts: all but the last are as long as the
/// first. 0 where the store does not tell, or tells something else. kStale when the object was replaced.
Result<std::uint64_t> EvenPartBytes(object::Store& store, const object::ObjectInfo& info, int parts,
                                    const object::Call& call);

/// Whether digests of parts make up the checksum.
bool DigestsHave(const PartDigests& digests, const object::Checksum& expected);

/// CRC-32C of the first `size` bytes.
Result<std::uint32_t> FileCrc32c(int fd, std::uint64_t size, const std::string& what, const object::Call& call);

/// The error of bytes that do not have the checksum they should have.
Error Mismatch(const std::string& what, const object::Checksum& expected);

}  // namespace millrace::transfer
