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
/// Over the whole object, or over the checksums of its parts.
enum class ChecksumType : std::uint8_t { kFullObject = 0, kComposite = 1 };

/// A checksum as it is kept and reported: base64, with "-N" behind it for a composite of N parts.
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

/// Computes one of them piece by piece. One owner.
class ChecksumHasher {
 public:
  explicit ChecksumHasher(ChecksumKind kind);
  ChecksumHasher(ChecksumHasher&&) noexcept;
  ChecksumHasher& operator=(ChecksumHasher&&) noexcept;
  ~ChecksumHasher();

  ChecksumKind kind() const { return kind_; }
  void Update(ByteSpan bytes);
  std::vector<std::byte> Finish();  ///< big-endian, as S3 writes them

 private:
  struct ShaState;
  ChecksumKind kind_;
  std::uint64_t crc_ = 0;
  std::unique_ptr<ShaState> sha_;
};

/// One part's share in the checksum of the whole.
struct PartChecksum {
  std::string value;  ///< base64
  std::uint64_t size = 0;
};
/// The checksum of an object made of parts: of their concatenated checksums (composite), or, for the CRCs, of the bytes
/// themselves (full object). Fails with kInvalidArgument on a malformed part or a full-object SHA.
Result<StoredChecksum> CombineChecksums(ChecksumKind kind, ChecksumType type, const std::vector<PartChecksum>& parts);

}  // namespace millrace::s3d
