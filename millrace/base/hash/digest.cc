#include "millrace/base/hash/digest.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/md5.h>
#include <openssl/sha.h>

#include <cstdlib>
#include <cstring>
#include <variant>

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

namespace {

// OpenSSL's functions of single digests are deprecated since 3.0. Those of EVP hide the state, so that a hash could not
// go on in another process.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

struct Sha256State {
  static constexpr std::size_t kDigestBytes = SHA256_DIGEST_LENGTH;
  SHA256_CTX context;
  Sha256State() { SHA256_Init(&context); }
  void Update(ByteSpan bytes) { SHA256_Update(&context, bytes.data(), bytes.size()); }
  void Final(unsigned char* digest) { SHA256_Final(digest, &context); }
  std::array<SHA_LONG*, 8> Words() {
    SHA_LONG* h = context.h;
    return {h, h + 1, h + 2, h + 3, h + 4, h + 5, h + 6, h + 7};
  }
};

struct Sha1State {
  static constexpr std::size_t kDigestBytes = SHA_DIGEST_LENGTH;
  SHA_CTX context;
  Sha1State() { SHA1_Init(&context); }
  void Update(ByteSpan bytes) { SHA1_Update(&context, bytes.data(), bytes.size()); }
  void Final(unsigned char* digest) { SHA1_Final(digest, &context); }
  std::array<SHA_LONG*, 5> Words() { return {&context.h0, &context.h1, &context.h2, &context.h3, &context.h4}; }
};

struct Md5HashState {
  static constexpr std::size_t kDigestBytes = MD5_DIGEST_LENGTH;
  MD5_CTX context;
  Md5HashState() { MD5_Init(&context); }
  void Update(ByteSpan bytes) { MD5_Update(&context, bytes.data(), bytes.size()); }
  void Final(unsigned char* digest) { MD5_Final(digest, &context); }
  std::array<MD5_LONG*, 4> Words() { return {&context.A, &context.B, &context.C, &context.D}; }
};

#pragma GCC diagnostic pop

constexpr std::size_t kBlockBytes = 64;  ///< of all three digests

template <class Number>
void AppendBigEndian(std::string& bytes, Number number) {
  for (std::size_t shift = 8 * sizeof number; shift > 0; shift -= 8) {
    bytes.push_back(static_cast<char>(number >> (shift - 8) & 0xff));
  }
}

template <class Number>
Number TakeBigEndian(std::string_view& bytes) {
  Number number = 0;
  for (const char c : bytes.substr(0, sizeof number)) {
    number = static_cast<Number>(number << 8 | static_cast<unsigned char>(c));
  }
  bytes.remove_prefix(sizeof number);
  return number;
}

}  // namespace

struct Hasher::Rep {
  std::variant<Sha256State, Sha1State, Md5HashState> state;
};

Hasher::Hasher(Algorithm algorithm) : rep_(std::make_unique<Rep>()) {
  if (algorithm == Algorithm::kSha1) rep_->state.emplace<Sha1State>();
  if (algorithm == Algorithm::kMd5) rep_->state.emplace<Md5HashState>();
}
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;
Hasher::~Hasher() = default;

void Hasher::Update(ByteSpan bytes) {
  std::visit([&](auto& state) { state.Update(bytes); }, rep_->state);
}

std::vector<std::byte> Hasher::Finish() {
  return std::visit(
      []<class State>(State& state) {
        std::vector<std::byte> digest(State::kDigestBytes);
        state.Final(reinterpret_cast<unsigned char*>(digest.data()));
        state = State();
        return digest;
      },
      rep_->state);
}

std::string Hasher::SaveState() const {
  return std::visit(
      [](auto& state) {
        std::string saved;
        for (const auto* word : state.Words()) AppendBigEndian(saved, *word);
        const std::uint64_t bits = std::uint64_t{state.context.Nh} << 32 | state.context.Nl;
        AppendBigEndian(saved, bits / 8);
        return saved.append(reinterpret_cast<const char*>(state.context.data), state.context.num);
      },
      rep_->state);
}

bool Hasher::RestoreState(std::string_view saved) {
  return std::visit(
      [&](auto& state) {
        auto restored = std::remove_reference_t<decltype(state)>();
        const auto words = restored.Words();
        if (saved.size() < 4 * words.size() + sizeof(std::uint64_t)) return false;
        for (auto* word : words) *word = TakeBigEndian<std::remove_reference_t<decltype(*word)>>(saved);
        const auto bytes = TakeBigEndian<std::uint64_t>(saved);
        if (saved.size() != bytes % kBlockBytes) return false;
        restored.context.Nl = static_cast<SHA_LONG>(bytes * 8);
        restored.context.Nh = static_cast<SHA_LONG>(bytes >> 29);
        restored.context.num = static_cast<unsigned>(saved.size());
        std::memcpy(restored.context.data, saved.data(), saved.size());
        state = restored;
        return true;
      },
      rep_->state);
}

std::string ShortHash(std::string_view text) { return HexEncode(Sha256(AsBytes(text))).substr(0, 16); }

}  // namespace millrace
