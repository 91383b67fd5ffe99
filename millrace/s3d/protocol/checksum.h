// The checksums of S3: x-amz-checksum-crc32, -crc32c, -crc64nvme, -sha1, -sha256.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::s3d {

/// The numbers are part of the journal's format.
enum class ChecksumKind : std::uint8_t { kCrc32 = 1, kCrc32c = 2, kCrc64Nvme = 3, kSha1 = 4, kSha256 = 5 };
inline constexpr ChecksumKind kChecksumKinds[] = {ChecksumKind::kCrc32, ChecksumKind::kCrc32c, ChecksumKind::kCrc64Nvme,
                                                  ChecksumKind::kSha1, ChecksumKind::kSha256};
/// A full-object checksum covers the bytes, a composite one covers the checksums of the parts.
enum class ChecksumType : std::uint8_t { kFullObject = 0, kComposite = 1 };

/// A checksum in the form of S3's answers: base64, followed by "-N" if it is a composite of N parts.
struct StoredChecksum {
  ChecksumKind kind = ChecksumKind::kCrc32;
  ChecksumType type = ChecksumType::kFullObject;
  std::string value;
  bool operator==(const StoredChecksum&) const = default;
};

std::string_view ChecksumName(ChecksumKind kind);     ///< "CRC32C", as in XML and x-amz-checksum-algorithm
std::string_view ChecksumHeader(ChecksumKind kind);   ///< "x-amz-checksum-crc32c"
std::string_view ChecksumElement(ChecksumKind kind);  ///< "ChecksumCRC32C"
std::optional<ChecksumKind> ParseChecksumName(std::string_view name);
std::optional<ChecksumKind> ParseChecksumHeader(std::string_view header);
std::string_view ChecksumTypeName(ChecksumType type);  ///< "FULL_OBJECT", "COMPOSITE"
std::size_t ChecksumBytes(ChecksumKind kind);

/// Computes a checksum of bytes that arrive in pieces. One owner.
class ChecksumHasher {
 public:
  explicit ChecksumHasher(ChecksumKind kind);
  ChecksumHasher(ChecksumHasher&&) noexcept;
  ChecksumHasher& operator=(ChecksumHasher&&) noexcept;
  ~ChecksumHasher();

  ChecksumKind kind() const { return kind_; }
  void Update(ByteSpan bytes);
  std::vector<std::byte> Finish();  ///< big-endian, as in S3's answers

 private:
  struct ShaState;
  ChecksumKind kind_;
  std::uint64_t crc_ = 0;
  std::unique_ptr<ShaState> sha_;
};

/// The checksum of a part, to combine with others.
struct PartChecksum {
  std::string value;  ///< base64
  std::uint64_t size = 0;
};
/// Returns the checksum of an object made of parts: the checksum of their concatenated checksums (composite), or, for
/// CRCs, of the bytes themselves (full object).
/// Errors: kInvalidArgument on a malformed part or a full-object SHA.
Result<StoredChecksum> CombineChecksums(ChecksumKind kind, ChecksumType type, const std::vector<PartChecksum>& parts);

}  // namespace millrace::s3d
