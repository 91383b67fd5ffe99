#include "millrace/object/s3/protocol/checksums.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <tuple>
#include <vector>

#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/xml/xml.h"

namespace millrace::object::s3 {
namespace {

template <class T>
std::string EncodeBigEndian(T value) {
  std::array<std::byte, sizeof value> bytes;
  for (std::size_t i = 0; i < sizeof value; ++i)
    bytes[i] = static_cast<std::byte>(value >> (8 * (sizeof value - 1 - i)));
  return Base64Encode(bytes);
}

}  // namespace

std::string EncodeCrc32c(const Payload& bytes) {
  return EncodeCrc32c(bytes.crc32c() ? *bytes.crc32c() : Crc32c(bytes));
}
std::string EncodeCrc32c(std::uint32_t crc) { return EncodeBigEndian(crc); }

Status ReadThrough(http::BodySource& source, const std::function<void(ByteSpan)>& take) {
  constexpr std::uint64_t kPiece = 128 * kKiB;  // stays in the processor's cache
  Buffer piece(std::min(source.size(), kPiece));
  for (std::uint64_t at = 0; at < source.size();) {
    MutableByteSpan into = piece.span().first(std::min<std::uint64_t>(piece.size(), source.size() - at));
    MR_TRY(source.Read(at, into));
    take(into);
    at += into.size();
  }
  return {};
}

Result<std::string> EncodeCrc32c(http::BodySource& source) {
  std::uint32_t crc = 0;
  MR_TRY(ReadThrough(source, [&](ByteSpan bytes) { crc = Crc32c(bytes, crc); }));
  return EncodeCrc32c(crc);
}

namespace {

/// Parses "digest" or "digest-3", where 3 is the number of parts. `decode` decodes the digest. Returns kNone for any
/// other text.
template <class Decode>
Checksum ParseChecksum(Checksum::Algorithm algorithm, std::size_t size, std::string_view text, Decode decode) {
  std::size_t dash = text.find('-');
  int parts = 0;
  if (dash != text.npos) {
    auto [end, error] = std::from_chars(text.data() + dash + 1, text.data() + text.size(), parts);
    if (error != std::errc() || end != text.data() + text.size() || parts < 1 || parts > 10'000) return {};
  }
  auto bytes = decode(text.substr(0, dash));
  if (!bytes || bytes->size() != size) return {};
  return {algorithm, std::string(AsText(*bytes)), parts};
}

}  // namespace

Checksum WholeChecksum(const http::Headers& headers) {
  using Algorithm = Checksum::Algorithm;
  for (auto [name, algorithm, size] : {std::tuple("x-amz-checksum-crc32c", Algorithm::kCrc32c, 4u),
                                       std::tuple("x-amz-checksum-crc64nvme", Algorithm::kCrc64Nvme, 8u)}) {
    Checksum checksum = ParseChecksum(algorithm, size, headers.Get(name), Base64Decode);
    // A composite checksum without its number of parts cannot be checked.
    bool composite = headers.Get("x-amz-checksum-type") == "COMPOSITE";
    if (checksum.algorithm != Algorithm::kNone && composite == (checksum.parts > 0)) return checksum;
  }
  // The ETag is still the MD5 if a key of the service (AES256) encrypts the object, but not with any other key.
  std::string_view encryption = headers.Get("x-amz-server-side-encryption");
  if ((!encryption.empty() && encryption != "AES256") ||
      headers.Has("x-amz-server-side-encryption-customer-algorithm")) {
    return {};
  }
  return ParseChecksum(Algorithm::kMd5, sizeof(Md5Digest), xml::Unquote(headers.Get("etag")), HexDecode);
}

Status VerifyChecksum(const http::Headers& headers, ByteSpan bytes) {
  if (headers.Get("x-amz-checksum-type") == "COMPOSITE") return {};
  std::string_view name, expected;
  for (std::string_view candidate : {"x-amz-checksum-crc32c", "x-amz-checksum-crc64nvme", "x-amz-checksum-sha256"}) {
    expected = headers.Get(name = candidate);
    if (!expected.empty()) break;
  }
  if (expected.empty() || expected.find('-') != expected.npos) return {};
  std::string actual;
  if (name == "x-amz-checksum-crc32c") {
    actual = EncodeCrc32c(bytes);
  } else if (name == "x-amz-checksum-crc64nvme") {
    actual = EncodeBigEndian(Crc64Nvme(bytes));
  } else {
    Sha256Digest digest = Sha256(bytes);
    actual = Base64Encode(digest);
  }
  if (actual == expected) return {};
  return Fail(Code::kCorrupt, "the bytes received do not have the object's checksum ({} is {}, not {})", name, actual,
              expected);
}

}  // namespace millrace::object::s3
