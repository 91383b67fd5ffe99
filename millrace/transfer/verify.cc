#include "millrace/transfer/verify.h"

#include <algorithm>
#include <functional>

#include "millrace/base/crc.h"
#include "millrace/base/digest.h"
#include "millrace/base/files.h"
#include "millrace/object/rules.h"

namespace millrace::transfer {
namespace {

constexpr std::uint64_t kPiece = 256 * kKiB;

template <class Word>
std::string BigEndian(Word value) {
  std::string bytes(sizeof value, '\0');
  for (std::size_t i = sizeof value; i-- > 0; value >>= 8) bytes[i] = static_cast<char>(value & 0xff);
  return bytes;
}

std::string_view NameOf(object::Checksum::Kind kind) {
  switch (kind) {
    case object::Checksum::Kind::kMd5:
      return "MD5";
    case object::Checksum::Kind::kCrc64Nvme:
      return "CRC64NVME";
    default:
      return "CRC32C";
  }
}

Status ForEachPiece(int fd, std::uint64_t size, const std::string& what, const object::Call& call,
                    const std::function<void(ByteSpan)>& visit) {
  Buffer piece(std::min(size, kPiece));
  for (std::uint64_t at = 0; at < size;) {
    MR_TRY(object::CheckCall(call, SystemClock()));
    MutableByteSpan bytes = piece.span().first(std::min<std::uint64_t>(piece.size(), size - at));
    MR_TRY(ReadExactly(fd, bytes, at, what));
    visit(bytes);
    at += bytes.size();
  }
  return {};
}

}  // namespace

object::Checksum Crc32cChecksum(std::uint32_t crc) { return {object::Checksum::Kind::kCrc32c, BigEndian(crc)}; }

Result<std::uint32_t> FileCrc32c(int fd, std::uint64_t size, const std::string& what, const object::Call& call) {
  std::uint32_t crc = 0;
  MR_TRY(ForEachPiece(fd, size, what, call, [&](ByteSpan bytes) { crc = Crc32c(bytes, crc); }));
  return crc;
}

Status VerifyFile(int fd, std::uint64_t size, const object::Checksum& expected, const std::string& what,
                  const object::Call& call) {
  using Kind = object::Checksum::Kind;
  std::string actual;
  if (expected.kind == Kind::kNone) return {};
  if (expected.kind == Kind::kCrc32c) actual = BigEndian(MR_TRY(FileCrc32c(fd, size, what, call)));
  if (expected.kind == Kind::kCrc64Nvme) {
    std::uint64_t crc = 0;
    MR_TRY(ForEachPiece(fd, size, what, call, [&](ByteSpan bytes) { crc = Crc64Nvme(bytes, crc); }));
    actual = BigEndian(crc);
  }
  if (expected.kind == Kind::kMd5) {
    Hasher md5(Hasher::Kind::kMd5);
    MR_TRY(ForEachPiece(fd, size, what, call, [&](ByteSpan bytes) { md5.Update(bytes); }));
    actual = std::string(AsText(md5.Finish()));
  }
  if (actual != expected.value) return std::unexpected(Mismatch(what, expected));
  return {};
}

Error Mismatch(const std::string& what, const object::Checksum& expected) {
  return Error(Code::kCorrupt,
               fmt::format("the bytes of {} do not have the {} that the store has for them; try again, and look at the "
                           "network and this machine's memory if that happens twice",
                           what, NameOf(expected.kind)));
}

}  // namespace millrace::transfer
