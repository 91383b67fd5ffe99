#include "millrace/base/hash/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstdlib>

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

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
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
    : rep_(std::make_unique<Rep>(algorithm == Algorithm::kSha256 ? EVP_sha256() : EVP_md5())) {}
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

std::string HexEncode(ByteSpan bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (std::byte b : bytes) {
    text += kDigits[std::to_integer<int>(b) >> 4];
    text += kDigits[std::to_integer<int>(b) & 15];
  }
  return text;
}

std::string ShortHash(std::string_view text) { return HexEncode(Sha256(AsBytes(text))).substr(0, 16); }

Result<std::vector<std::byte>> HexDecode(std::string_view text) {
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 2);
  if (text.size() % 2 != 0) return Fail(Code::kInvalidArgument, "hexadecimal text has an odd number of digits");
  for (std::size_t i = 0; i < text.size(); i += 2) {
    int high = HexValue(text[i]), low = HexValue(text[i + 1]);
    if (high < 0 || low < 0) return Fail(Code::kInvalidArgument, "not a hexadecimal digit at position {}", i);
    bytes.push_back(static_cast<std::byte>(high * 16 + low));
  }
  return bytes;
}

std::string Base64Encode(ByteSpan bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // the library adds a NUL
  int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                             reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

Result<std::vector<std::byte>> Base64Decode(std::string_view text) {
  std::vector<std::byte> bytes(text.size() / 4 * 3);
  int size = text.size() % 4 != 0
                 ? -1
                 : EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  // The library skips white space around the text, which RFC 4648 does not allow.
  bool has_space = text.find_first_of(" \t\r\n") != std::string_view::npos;
  std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  if (size < 0 || has_space || text.substr(0, text.size() - padding).find('=') != std::string_view::npos)
    return Fail(Code::kInvalidArgument, "not base64 text");
  bytes.resize(static_cast<std::size_t>(size) - padding);
  return bytes;
}

bool ConstantTimeEqual(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace millrace
