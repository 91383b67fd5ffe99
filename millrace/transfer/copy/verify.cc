#include "millrace/transfer/copy/verify.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/digest.h"
#include "millrace/object/rules.h"
#include "millrace/transfer/stream/window.h"

namespace millrace::transfer {
namespace {

constexpr std::uint64_t kVerifyPiece = 256 * kKiB;  // fits a core's cache between read and checksum

template <class Word>
std::string BigEndian(Word value) {
  std::string bytes(sizeof value, '\0');
  for (std::size_t i = sizeof value; i-- > 0; value >>= 8) bytes[i] = static_cast<char>(value & 0xff);
  return bytes;
}

template <class Word>
bool ReadBigEndian(std::string_view bytes, Word& value) {
  if (bytes.size() != sizeof value) return false;
  value = 0;
  for (const char c : bytes) value = static_cast<Word>(value << 8 | static_cast<unsigned char>(c));
  return true;
}

std::string_view NameOf(object::Checksum::Algorithm algorithm) {
  switch (algorithm) {
    case object::Checksum::Algorithm::kMd5:
      return "MD5";
    case object::Checksum::Algorithm::kCrc64Nvme:
      return "CRC64NVME";
    case object::Checksum::Algorithm::kSha256:
      return "SHA-256";
    case object::Checksum::Algorithm::kGitBlob:
      return "hash of git";
    default:
      return "CRC32C";
  }
}

Status ForEachPiece(int fd, object::ByteRange range, const std::string& what, const object::Call& call,
                    const std::function<void(ByteSpan)>& visit) {
  Buffer piece(std::min(range.length, kVerifyPiece));
  for (std::uint64_t at = 0; at < range.length;) {
    MR_TRY(object::CheckCall(call, SystemClock()));
    MutableByteSpan bytes = piece.span().first(std::min<std::uint64_t>(piece.size(), range.length - at));
    MR_TRY(ReadExactly(fd, bytes, range.offset + at, what));
    visit(bytes);
    at += bytes.size();
  }
  return {};
}

/// Returns the digest as bytes.
Result<std::string> DigestOf(int fd, object::ByteRange range, object::Checksum::Algorithm algorithm,
                             const std::string& what, const object::Call& call) {
  Digester digester(algorithm, range.length);
  MR_TRY(ForEachPiece(fd, range, what, call, [&](ByteSpan bytes) { digester.Update(bytes); }));
  return digester.Finish();
}

std::string DigestOf(std::string_view bytes, object::Checksum::Algorithm algorithm) {
  Digester digester(algorithm, bytes.size());
  digester.Update(AsBytes(bytes));
  return digester.Finish();
}

/// The sizes of an object's parts.
using PartSizes = std::vector<std::uint64_t>;

Result<bool> PartsHave(int fd, const PartSizes& sizes, const object::Checksum& expected, const std::string& what,
                       const object::Call& call) {
  std::string digests;
  std::uint64_t at = 0;
  for (std::uint64_t size : sizes) {
    digests += MR_TRY(DigestOf(fd, {at, size}, expected.algorithm, what, call));
    at += size;
  }
  return DigestOf(digests, expected.algorithm) == expected.value;
}

/// Returns the sizes of `parts` parts if all but the last are as long as the first. Returns nothing if that is
/// impossible.
std::optional<PartSizes> EvenParts(std::uint64_t size, std::uint64_t first, int parts) {
  if (first == 0 || (size + first - 1) / first != static_cast<std::uint64_t>(parts)) return std::nullopt;
  PartSizes sizes(static_cast<std::size_t>(parts), first);
  sizes.back() = size - first * (sizes.size() - 1);
  return sizes;
}

/// Requests the sizes of parts `first` to `last`. Returns nothing if the store does not tell all of them.
Result<std::optional<PartSizes>> AskForParts(object::ReadStore& store, const object::ObjectInfo& info, int first,
                                             int last, const object::Call& call) {
  constexpr int kAtOnce = 16;  // requests in flight: they are small, and an object may have 10,000 parts
  PartSizes sizes(static_cast<std::size_t>(last - first + 1));
  std::atomic<bool> told = true;
  Window window(kAtOnce, call);
  for (int number = first; number <= last && told && window.Enter(); ++number) {
    store.HeadPart(info.key, info.etag, number, window.call(), [&, number](Result<std::optional<std::uint64_t>> size) {
      if (size && *size) sizes[static_cast<std::size_t>(number - first)] = **size;
      if (size && !*size) told = false;
      window.Leave(size ? Status() : Status(std::unexpected(size.error())));
    });
  }
  Status asked = window.Finish();
  if (!asked && asked.error().code() == Code::kPreconditionFailed) {
    return Fail(Code::kStale, "{} was replaced while it was checked", info.key);
  }
  MR_TRY(std::move(asked));
  return told ? std::optional(std::move(sizes)) : std::nullopt;
}

}  // namespace

Digester::Digester(object::Checksum::Algorithm algorithm, std::uint64_t size) : algorithm_(algorithm) {
  using Algorithm = object::Checksum::Algorithm;
  if (algorithm == Algorithm::kMd5) hasher_.emplace(Hasher::Algorithm::kMd5);
  if (algorithm == Algorithm::kSha256) hasher_.emplace(Hasher::Algorithm::kSha256);
  if (algorithm != Algorithm::kGitBlob) return;
  hasher_.emplace(Hasher::Algorithm::kSha1);
  const std::string head = fmt::format("blob {}", size);
  hasher_->Update(AsBytes(std::string_view(head.c_str(), head.size() + 1)));  // with its NUL byte
}

void Digester::Update(ByteSpan bytes) {
  if (hasher_) return hasher_->Update(bytes);
  if (algorithm_ == object::Checksum::Algorithm::kCrc32c) crc32_ = Crc32c(bytes, crc32_);
  if (algorithm_ == object::Checksum::Algorithm::kCrc64Nvme) crc64_ = Crc64Nvme(bytes, crc64_);
}

std::string Digester::Finish() {
  if (hasher_) return std::string(AsText(hasher_->Finish()));
  return algorithm_ == object::Checksum::Algorithm::kCrc64Nvme ? BigEndian(crc64_) : BigEndian(crc32_);
}

std::string Digester::SaveState() const {
  if (hasher_) return hasher_->SaveState();
  if (algorithm_ == object::Checksum::Algorithm::kCrc32c) return BigEndian(crc32_);
  return algorithm_ == object::Checksum::Algorithm::kCrc64Nvme ? BigEndian(crc64_) : std::string();
}

bool Digester::RestoreState(std::string_view state) {
  if (hasher_) return hasher_->RestoreState(state);
  if (algorithm_ == object::Checksum::Algorithm::kCrc32c) return ReadBigEndian(state, crc32_);
  return algorithm_ == object::Checksum::Algorithm::kCrc64Nvme ? ReadBigEndian(state, crc64_) : state.empty();
}

object::Checksum Crc32cChecksum(std::uint32_t crc) { return {object::Checksum::Algorithm::kCrc32c, BigEndian(crc)}; }

Result<std::uint32_t> FileCrc32c(int fd, std::uint64_t size, const std::string& what, const object::Call& call) {
  std::uint32_t crc = 0;
  MR_TRY(ForEachPiece(fd, {0, size}, what, call, [&](ByteSpan bytes) { crc = Crc32c(bytes, crc); }));
  return crc;
}

Status VerifyFile(int fd, std::uint64_t size, const object::Checksum& expected, const std::string& what,
                  const object::Call& call) {
  if (expected.algorithm == object::Checksum::Algorithm::kNone) return {};
  if (MR_TRY(DigestOf(fd, {0, size}, expected.algorithm, what, call)) == expected.value) return {};
  return std::unexpected(Mismatch(what, expected));
}

Result<bool> VerifyParts(int fd, object::ReadStore& store, const object::ObjectInfo& info,
                         const object::Checksum& expected, const object::Call& call) {
  std::optional<PartSizes> even(PartSizes{info.size});
  if (expected.parts > 1) {
    auto first = MR_TRY(AskForParts(store, info, 1, 1, call));
    if (!first) return false;
    even = EvenParts(info.size, first->front(), expected.parts);
  }
  if (even && MR_TRY(PartsHave(fd, *even, expected, info.key, call))) return true;
  if (expected.parts == 1) return std::unexpected(Mismatch(info.key, expected));  // there is no other cut
  auto asked = MR_TRY(AskForParts(store, info, 1, expected.parts, call));
  if (!asked || std::accumulate(asked->begin(), asked->end(), std::uint64_t{0}) != info.size) return false;
  if (*asked != even && MR_TRY(PartsHave(fd, *asked, expected, info.key, call))) return true;
  return std::unexpected(Mismatch(info.key, expected));
}

Result<std::uint64_t> EvenPartBytes(object::ReadStore& store, const object::ObjectInfo& info, int parts,
                                    const object::Call& call) {
  if (parts == 1) return info.size;
  auto first = MR_TRY(AskForParts(store, info, 1, 1, call));
  return first && EvenParts(info.size, first->front(), parts) ? first->front() : 0;
}

bool DigestsHave(const PartDigests& digests, const object::Checksum& expected) {
  Hasher md5(Hasher::Algorithm::kMd5);
  for (const Md5Digest& digest : digests) md5.Update(digest);
  return digests.size() == static_cast<std::size_t>(expected.parts) && AsText(md5.Finish()) == expected.value;
}

Error Mismatch(const std::string& what, const object::Checksum& expected) {
  return Error(Code::kCorrupt,
               fmt::format("the bytes of {} do not have the {} that the store has for them; try again, and look at the "
                           "network and this machine's memory if that happens twice",
                           what, NameOf(expected.algorithm)));
}

}  // namespace millrace::transfer
