// SHA-256, SHA-1, MD5 and HMAC-SHA-256 by OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"

namespace millrace {

using Sha256Digest = std::array<std::byte, 32>;
using Md5Digest = std::array<std::byte, 16>;

Sha256Digest Sha256(ByteSpan bytes);
Sha256Digest HmacSha256(ByteSpan key, ByteSpan message);
Md5Digest Md5(ByteSpan bytes);  ///< for ETags; not for security
/// Returns the first 16 hexadecimal digits of the SHA-256 of `text`, for use as a name.
std::string ShortHash(std::string_view text);

/// Computes a digest of bytes that arrive in pieces. One owner.
class Hasher {
 public:
  enum class Algorithm { kSha256, kSha1, kMd5 };
  explicit Hasher(Algorithm algorithm);
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();
  void Update(ByteSpan bytes);
  /// Returns the digest: 32 bytes of SHA-256, 20 of SHA-1 or 16 of MD5. The hasher then begins a new message.
  std::vector<std::byte> Finish();

  /// Returns the state after the bytes so far, at most 104 bytes: the words of the digest, the number of bytes, and the
  /// bytes behind the last whole block. All numbers are big-endian.
  std::string SaveState() const;
  /// Continues the message of another hasher of the same algorithm behind the bytes that it had at SaveState(). Returns
  /// false, and changes nothing, if `state` has another length than the states of this algorithm.
  bool RestoreState(std::string_view state);

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace millrace
