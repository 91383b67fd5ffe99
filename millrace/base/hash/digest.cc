#include "millrace/base/hash/digest.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstdlib>

#include "millrace/base/hash/text_encoding.h"

namespace millrace {
namespace {

template <class Digest>
Digest OneShot(const EVP_MD* kind, ByteSpan bytes) {
  Digest digest;
  unsigned size = 0;
  // Fails only when the library cannot allocate or lacks the algorithm: nothing sensible can go on.
  if (EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), &size, kind, nullptr) !=
      1)
    std::abort();
  return digest;
}

}  // namespace

Sha256Digest Sha256(ByteSpan bytes) { return OneShot<Sha256Digest>(EVP_sha256(), bytes); }
Md5Digest Md5(ByteSpan bytes) { return OneShot<Md5Digest>(EVP_md5(), bytes); }

Sha256Digest HmacSha256(ByteSpan key, ByteSpan message) {
  Sha256Digest digest;
  unsigned size = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(digest.data()), &size) == nullptr)
    std::abort();
  return digest;
}

struct Hasher::Rep {
  EVP_MD_CTX* context;
  const EVP_MD* kind;
  explicit Rep(const EVP_MD* k) : context(EVP_MD_CTX_new()), kind(k) { Begin(); }
  ~Rep() { EVP_MD_CTX_free(context); }
  void Begin() {
    if (context == nullptr || EVP_DigestInit_ex(context, kind, nullptr) != 1) std::abort();
  }
};

Hasher::Hasher(Algorithm algorithm)
    : rep_(std::make_unique<Rep>(algorithm == Algorithm::kSha256 ? EVP_sha256()
                                 : algorithm == Algorithm::kSha1 ? EVP_sha1()
                                                                 : EVP_md5())) {}
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;
Hasher::~Hasher() = default;

void Hasher::Update(ByteSpan bytes) { EVP_DigestUpdate(rep_->context, bytes.data(), bytes.size()); }

std::vector<std::byte> Hasher::Finish() {
  std::vector<std::byte> digest(static_cast<std::size_t>(EVP_MD_get_size(rep_->kind)));
  unsigned size = 0;
  EVP_DigestFinal_ex(rep_->context, reinterpret_cast<unsigned char*>(digest.data()), &size);
  rep_->Begin();
  return digest;
}

std::string ShortHash(std::string_view text) { return HexEncode(Sha256(AsBytes(text))).substr(0, 16); }

}  // namespace millrace
