#include "millrace/object/s3/checksums.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include "millrace/base/crc.h"
#include "millrace/base/digest.h"
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

std::string EncodeCrc32c(ByteSpan bytes) { return EncodeBigEndian(Crc32c(bytes)); }

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
  return EncodeBigEndian(crc);
}

Checksum WholeChecksum(const http::Headers& headers) {
  auto text = [](const std::vector<std::byte>& bytes) { return std::string(AsText(bytes)); };
  if (headers.Get("x-amz-checksum-type") != "COMPOSITE") {
    using Kind = Checksum::Kind;
    for (auto [name, kind, size] : {std::tuple("x-amz-checksum-crc32c", Kind::kCrc32c, 4u),
                                    std::tuple("x-amz-checksum-crc64nvme", Kind::kCrc64Nvme, 8u)}) {
      auto bytes = Base64Decode(headers.Get(name));
      if (bytes && bytes->size() == size) return {kind, text(*bytes)};
    }
  }
  if (headers.Has("x-amz-server-side-encryption") || headers.Has("x-amz-server-side-encryption-customer-algorithm")) {
    return {};
  }
  auto md5 = HexDecode(xml::Unquote(headers.Get("etag")));
  if (md5 && md5->size() == sizeof(Md5Digest)) return {Checksum::Kind::kMd5, text(*md5)};
  return {};
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
