#include "millrace/s3d/receive.h"

#include <algorithm>

namespace millrace::s3d {
namespace {

constexpr std::uint64_t kPiece = 512 * kKiB;

/// Pieces as large as pays, but no larger than what will come.
Buffer PieceBuffer(const Payload& payload) {
  return Buffer(std::clamp<std::uint64_t>(payload.expected().value_or(kPiece), 1, kPiece));
}

}  // namespace

Reply<Extents> ReceiveBody(Payload& payload, BlobStore& blobs, std::uint64_t& size) {
  BlobWriter writer(blobs);
  Buffer piece = PieceBuffer(payload);
  while (std::size_t got = MR_TRY(payload.Read(piece.span()))) MR_TRY(writer.Append(piece.span().first(got)));
  size = writer.size();
  return MR_TRY(writer.Finish());
}

Reply<void> DigestPart(std::optional<ChecksumKind> kind, Part& part) {
  Hasher md5(Hasher::Kind::kMd5);
  std::optional<ChecksumHasher> checksum;
  if (kind) checksum.emplace(*kind);
  Buffer piece(kPiece);
  for (const Extent& extent : part.extents) {
    auto fd = MR_TRY(extent.blob->Open());
    for (std::uint64_t done = 0; done < extent.length;) {
      MutableByteSpan into = piece.span().first(std::min<std::uint64_t>(kPiece, extent.length - done));
      MR_TRY(ReadExactly(fd->get(), into, extent.offset + done, "the source of a copy"));
      md5.Update(into);
      if (checksum) checksum->Update(into);
      done += into.size();
    }
  }
  part.etag = HexEncode(md5.Finish());
  if (checksum) part.checksum = Base64Encode(checksum->Finish());
  return {};
}

Reply<std::string> ReadDocument(Payload& payload) {
  std::string document;
  Buffer piece = PieceBuffer(payload);
  while (std::size_t got = MR_TRY(payload.Read(piece.span()))) document.append(AsText(piece.span().first(got)));
  return document;
}

}  // namespace millrace::s3d
