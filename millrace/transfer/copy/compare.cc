#include "millrace/transfer/copy/compare.h"

#include <chrono>

#include "millrace/object/blocking.h"
#include "millrace/transfer/copy/verify.h"
#include "millrace/transfer/local/local_file.h"

namespace millrace::transfer {
namespace {

Result<object::Checksum> ChecksumOf(const ComparedItem& version, const object::Call& call) {
  if (version.info.checksum.algorithm != object::Checksum::Algorithm::kNone) return version.info.checksum;
  auto head = MR_TRY(object::Head(*version.store, version.info.key, call));
  if (!head || head->etag != version.info.etag) {
    return Fail(Code::kStale, "{} was replaced or deleted meanwhile", version.info.key);
  }
  return std::move(head->checksum);
}

Result<bool> FileHas(const ComparedItem& file, const ComparedItem& object, const object::Checksum& checksum,
                     const object::Call& call) {
  if (checksum.algorithm == object::Checksum::Algorithm::kNone) return false;
  LocalFile open = MR_TRY(LocalFile::Open("/" + file.info.key));
  Result<bool> same = true;
  if (checksum.parts > 0) {
    same = VerifyParts(open.fd(), *object.store, object.info, checksum, call);
  } else if (Status verified = VerifyFile(open.fd(), open.size(), checksum, open.path(), call); !verified) {
    same = std::unexpected(verified.error());
  }
  if (!same && same.error().code() == Code::kCorrupt) return false;
  return same;
}

}  // namespace

Result<bool> SameContent(const ComparedItem& a, const ComparedItem& b, const object::Call& call) {
  if (a.info.size != b.info.size) return false;
  if (a.info.size == 0) return true;
  if (!a.local && !b.local) {
    if (a.info.etag == b.info.etag) return true;
    object::Checksum ours = MR_TRY(ChecksumOf(a, call)), theirs = MR_TRY(ChecksumOf(b, call));
    return ours.algorithm != object::Checksum::Algorithm::kNone && ours == theirs;
  }
  if (!a.local) return FileHas(b, a, MR_TRY(ChecksumOf(a, call)), call);
  if (!b.local) return FileHas(a, b, MR_TRY(ChecksumOf(b, call)), call);
  LocalFile file = MR_TRY(LocalFile::Open("/" + a.info.key));
  return FileHas(b, a, Crc32cChecksum(MR_TRY(FileCrc32c(file.fd(), file.size(), file.path(), call))), call);
}

Result<bool> NeedsCopy(const ComparedItem& source, const ComparedItem& destination, const CopyWhen& when,
                       const object::Call& call) {
  using std::chrono::floor, std::chrono::seconds;
  if (!when.conditional()) return true;
  if (when.newer && floor<seconds>(source.info.modified) > floor<seconds>(destination.info.modified)) return true;
  if (when.size_differs && source.info.size != destination.info.size) return true;
  return when.checksum && !MR_TRY(SameContent(source, destination, call));
}

}  // namespace millrace::transfer
