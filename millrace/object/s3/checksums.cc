#include "millrace/object/s3/checksums.h"

#include <array>

#include "millrace/base/crc.h"
#include "millrace/base/digest.h"

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
