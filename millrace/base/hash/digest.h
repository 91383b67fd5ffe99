// SHA-256, MD5 and HMAC by OpenSSL, and the text encodings of digests: hexadecimal and base64.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace {

using Sha256Digest = std::array<std::byte, 32>;
using Md5Digest = std::array<std::byte, 16>;

Sha256Digest Sha256(ByteSpan bytes);
Sha256Digest HmacSha256(ByteSpan key, ByteSpan message);
Md5Digest Md5(ByteSpan bytes);  ///< for ETags; not for security

/// Computes a digest of bytes that arrive in pieces. One owner.
class Hasher {
 public:
  enum class Algorithm { kSha256, kMd5 };
  explicit Hasher(Algorithm algorithm);
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();
  void Update(ByteSpan bytes);
  /// Returns the digest: 32 bytes of SHA-256 or 16 of MD5. The hasher then begins a new message.
  std::vector<std::byte> Finish();

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

std::string HexEncode(ByteSpan bytes);  ///< lower case
/// Returns the first 16 hexadecimal digits of the SHA-256 of `text`, for use as a name.
std::string ShortHash(std::string_view text);
Result<std::vector<std::byte>> HexDecode(std::string_view text);
std::string Base64Encode(ByteSpan bytes);  ///< RFC 4648 section 4, with padding
Result<std::vector<std::byte>> Base64Decode(std::string_view text);
/// Compares two secrets. The time does not depend on where they differ.
bool ConstantTimeEqual(std::string_view a, std::string_view b);

}  // namespace millrace
