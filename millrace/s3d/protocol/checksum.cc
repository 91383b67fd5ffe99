#include "millrace/s3d/protocol/checksum.h"

#include <openssl/evp.h>
#include <zlib.h>

#include <algorithm>
#include <array>

#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"

namespace millrace::s3d {
namespace {

struct KindNames {
  std::string_view name, header, element;
  std::size_t bytes;
};

const KindNames& Names(ChecksumKind kind) {
  static constexpr KindNames kNames[] = {
      {"CRC32", "x-amz-checksum-crc32", "ChecksumCRC32", 4},
      {"CRC32C", "x-amz-checksum-crc32c", "ChecksumCRC32C", 4},
      {"CRC64NVME", "x-amz-checksum-crc64nvme", "ChecksumCRC64NVME", 8},
      {"SHA1", "x-amz-checksum-sha1", "ChecksumSHA1", 20},
      {"SHA256", "x-amz-checksum-sha256", "ChecksumSHA256", 32},
  };
  return kNames[static_cast<int>(kind) - 1];
}

bool IsCrc(ChecksumKind kind) { return kind != ChecksumKind::kSha1 && kind != ChecksumKind::kSha256; }

std::vector<std::byte> BigEndian(std::uint64_t value, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[bytes - 1 - i] = static_cast<std::byte>(value >> (8 * i));
  return out;
}

std::uint64_t FromBigEndian(ByteSpan bytes) {
  std::uint64_t value = 0;
  for (std::byte byte : bytes) value = value << 8 | static_cast<std::uint64_t>(byte);
  return value;
}

std::uint64_t UpdateCrc(ChecksumKind kind, std::uint64_t crc, ByteSpan bytes) {
  switch (kind) {
    case ChecksumKind::kCrc32:
      return crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
    case ChecksumKind::kCrc32c:
      return Crc32c(bytes, static_cast<std::uint32_t>(crc));
    default:
      return Crc64Nvme(bytes, crc);
  }
}

std::uint64_t CombineCrc(ChecksumKind kind, std::uint64_t a, std::uint64_t b, std::uint64_t length_of_b) {
  switch (kind) {
    case ChecksumKind::kCrc32:
      return crc32_combine(a, b, static_cast<z_off_t>(length_of_b));
    case ChecksumKind::kCrc32c:
      return Crc32cCombine(static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b), length_of_b);
    default:
      return Crc64NvmeCombine(a, b, length_of_b);
  }
}

}  // namespace

std::string_view ChecksumName(ChecksumKind kind) { return Names(kind).name; }
std::string_view ChecksumHeader(ChecksumKind kind) { return Names(kind).header; }
std::string_view ChecksumElement(ChecksumKind kind) { return Names(kind).element; }
std::size_t ChecksumBytes(ChecksumKind kind) { return Names(kind).bytes; }
std::string_view ChecksumTypeName(ChecksumType type) {
  return type == ChecksumType::kFullObject ? "FULL_OBJECT" : "COMPOSITE";
}

std::optional<ChecksumKind> ParseChecksumName(std::string_view name) {
  for (ChecksumKind kind : kChecksumKinds) {
    if (ToLower(name) == ToLower(ChecksumName(kind))) return kind;
  }
  return std::nullopt;
}

std::optional<ChecksumKind> ParseChecksumHeader(std::string_view header) {
  for (ChecksumKind kind : kChecksumKinds) {
    if (ToLower(header) == ChecksumHeader(kind)) return kind;
  }
  return std::nullopt;
}

struct ChecksumHasher::ShaState {
  explicit ShaState(const EVP_MD* kind) : context(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    EVP_DigestInit_ex(context.get(), kind, nullptr);
  }
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context;
};

ChecksumHasher::ChecksumHasher(ChecksumKind kind) : kind_(kind) {
  if (!IsCrc(kind)) sha_ = std::make_unique<ShaState>(kind == ChecksumKind::kSha1 ? EVP_sha1() : EVP_sha256());
}
ChecksumHasher::ChecksumHasher(ChecksumHasher&&) noexcept = default;
ChecksumHasher& ChecksumHasher::operator=(ChecksumHasher&&) noexcept = default;
ChecksumHasher::~ChecksumHasher() = default;

void ChecksumHasher::Update(ByteSpan bytes) {
  if (sha_) {
    EVP_DigestUpdate(sha_->context.get(), bytes.data(), bytes.size());
  } else {
    crc_ = UpdateCrc(kind_, crc_, bytes);
  }
}

std::vector<std::byte> ChecksumHasher::Finish() {
  if (!sha_) return BigEndian(crc_, ChecksumBytes(kind_));
  std::vector<std::byte> digest(ChecksumBytes(kind_));
  EVP_DigestFinal_ex(sha_->context.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr);
  return digest;
}

Result<StoredChecksum> CombineChecksums(ChecksumKind kind, ChecksumType type, const std::vector<PartChecksum>& parts) {
  if (type == ChecksumType::kFullObject && !IsCrc(kind)) {
    return Fail(Code::kInvalidArgument, "{} of a multipart object can only be composite", ChecksumName(kind));
  }
  ChecksumHasher composite(kind);
  std::uint64_t whole = 0;
  for (const PartChecksum& part : parts) {
    auto bytes = Base64Decode(part.value);
    if (!bytes || bytes->size() != ChecksumBytes(kind)) {
      return Fail(Code::kInvalidArgument, "a part has no valid {}; expected its bytes in base64", ChecksumName(kind));
    }
    if (type == ChecksumType::kComposite) {
      composite.Update(*bytes);
    } else {
      whole = CombineCrc(kind, whole, FromBigEndian(*bytes), part.size);
    }
  }
  if (type == ChecksumType::kFullObject)
    return StoredChecksum{kind, type, Base64Encode(BigEndian(whole, ChecksumBytes(kind)))};
  return StoredChecksum{kind, type, fmt::format("{}-{}", Base64Encode(composite.Finish()), parts.size())};
}

}  // namespace millrace::s3d
