// Verifies local bytes by the checksums that a store has for an object.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash/digest.h"
#include "millrace/base/result.h"
#include "millrace/object/read_store.h"

namespace millrace::transfer {

/// Converts a CRC-32C.
object::Checksum Crc32cChecksum(std::uint32_t crc);

/// Computes a checksum of a whole object from bytes that arrive in order. One owner.
class Digester {
 public:
  /// `size`: of the object.
  Digester(object::Checksum::Algorithm algorithm, std::uint64_t size);
  void Update(ByteSpan bytes);
  /// Returns the digest, as Checksum::value. Call it once.
  std::string Finish();

  /// Returns the state after the bytes so far, for a Digester of another process. Empty for kNone.
  std::string SaveState() const;
  /// Continues behind the bytes that another Digester of the same algorithm had at SaveState(). Returns false if
  /// `state` is none of this algorithm.
  bool RestoreState(std::string_view state);

 private:
  const object::Checksum::Algorithm algorithm_;
  std::uint32_t crc32_ = 0;
  std::uint64_t crc64_ = 0;
  std::optional<Hasher> hasher_;  ///< of MD5, SHA-256 and git's hash
};

/// Reads the first `size` bytes of the file and compares them with a checksum of the whole object. kNone always
/// matches. `what` names the object in messages. Blocks. Errors: kCorrupt if the checksums differ.
Status VerifyFile(int fd, std::uint64_t size, const object::Checksum& expected, const std::string& what,
                  const object::Call& call);

/// Like VerifyFile(), for a checksum of an object's parts. Requests the sizes of the parts from the store. Returns
/// false if the store does not have them: the file is then neither right nor wrong. Blocks. Errors: kCorrupt if the
/// checksums differ; kStale if the object was replaced.
Result<bool> VerifyParts(int fd, object::ReadStore& store, const object::ObjectInfo& info,
                         const object::Checksum& expected, const object::Call& call);

/// The MD5s of an object's consecutive parts, each of `part_bytes` but the last.
using PartDigests = std::vector<Md5Digest>;

/// Returns the size of an object's parts if all but the last are as long as the first. Nearly every client uploads such
/// parts. Returns 0 if the sizes differ or the store does not have them. Blocks.
/// Errors: kStale if the object was replaced.
Result<std::uint64_t> EvenPartBytes(object::ReadStore& store, const object::ObjectInfo& info, int parts,
                                    const object::Call& call);

/// Returns whether the digests of all parts give the checksum.
bool DigestsHave(const PartDigests& digests, const object::Checksum& expected);

/// Returns the CRC-32C of the first `size` bytes of a file. Blocks.
Result<std::uint32_t> FileCrc32c(int fd, std::uint64_t size, const std::string& what, const object::Call& call);

/// Returns the kCorrupt error for bytes with a wrong checksum.
Error Mismatch(const std::string& what, const object::Checksum& expected);

}  // namespace millrace::transfer
