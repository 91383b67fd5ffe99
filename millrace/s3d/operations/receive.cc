#include "millrace/s3d/operations/receive.h"

#include <algorithm>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"

namespace millrace::s3d {
namespace {

/// A guess: long enough that handing a piece to the hashing thread costs little, short enough for a core's cache.
constexpr std::uint64_t kPiece = 512 * kKiB;

/// Returns the size of a piece: kPiece, or less if the body is shorter.
Buffer PieceBuffer(const Payload& payload) {
  return Buffer(std::clamp<std::uint64_t>(payload.expected().value_or(kPiece), 1, kPiece));
}

}  // namespace

Reply<Extents> ReceiveBody(Payload& payload, BlobStore& blobs, std::uint64_t& size) {
  // A body of several pieces is hashed on a thread, and needs a second piece to receive into meanwhile.
  Buffer pieces[2] = {PieceBuffer(payload), Buffer(payload.expected().value_or(kPiece + 1) > kPiece ? kPiece : 0)};
  std::size_t count = pieces[1].size() > 0 ? 2 : 1;
  if (count == 2) payload.HashBeside();
  struct Awaiter {  // the pieces must not be destroyed while they are being hashed
    Payload& payload;
    ~Awaiter() { payload.AwaitHashes(); }
  } awaiter{payload};
  BlobWriter writer(blobs);
  for (std::size_t i = 0;; i = (i + 1) % count) {
    std::size_t got = MR_TRY(payload.Read(pieces[i].span()));
    if (got == 0) break;
    MR_TRY(writer.Append(pieces[i].span().first(got)));
  }
  size = writer.size();
  return MR_TRY(writer.Finish());
}

Reply<void> DigestPart(std::optional<ChecksumKind> kind, StoredPart& part) {
  Hasher md5(Hasher::Algorithm::kMd5);
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
