// Hashes and the text encodings of bytes (OpenSSL underneath).
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

/// Incremental form, for bodies that are not in memory at once. One owner.
class Hasher {
 public:
  enum class Kind { kSha256, kMd5 };
  explicit Hasher(Kind kind);
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();
  void Update(ByteSpan bytes);
  /// The digest: 32 or 16 bytes. The hasher is empty afterwards and may be used again.
  std::vector<std::byte> Finish();

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

std::string HexEncode(ByteSpan bytes);  ///< lower case
/// A name for `text` of 16 hexadecimal digits: the front of its SHA-256.
std::string ShortHash(std::string_view text);
Result<std::vector<std::byte>> HexDecode(std::string_view text);
std::string Base64Encode(ByteSpan bytes);  ///< RFC 4648 section 4, with padding
Result<std::vector<std::byte>> Base64Decode(std::string_view text);
/// Compares in time that does not depend on where the two differ.
bool ConstantTimeEqual(std::string_view a, std::string_view b);

}  // namespace millrace
