// Uploads. Bytes go from the file straight into the connection's buffer.
#include <algorithm>

#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/transfer/copy/copy.h"
#include "millrace/transfer/copy/multipart_job.h"
#include "millrace/transfer/copy/verify.h"
#include "millrace/transfer/local/local_file.h"
#include "millrace/transfer/stream/window.h"

namespace millrace::transfer {
namespace {

constexpr std::uint64_t kUploadPiece = 128 * kKiB;  // fits a core's cache between read and checksum

/// A range of a file. With its last bytes it checks that the file has not changed. If it has, the read fails and the
/// request is not complete, so that the bytes of two versions never become one object. Reports each byte to
/// settings.on_bytes once, also if a retry sends it again.
class FileSource final : public object::Source {
 public:
  FileSource(const LocalFile& file, object::ByteRange range, const CopySettings& settings)
      : file_(file), range_(range), settings_(settings) {}
  std::uint64_t size() const override { return range_.length; }
  Status Read(std::uint64_t offset, MutableByteSpan into) override {
    MR_TRY(ReadExactly(file_.fd(), into, range_.offset + offset, file_.path()));
    return offset + into.size() == range_.length ? file_.CheckUnchanged() : Status();
  }
  void OnSent(std::uint64_t end) override {
    if (end <= reported_) return;
    if (settings_.on_bytes) settings_.on_bytes(end - reported_);
    reported_ = end;
  }

 private:
  const LocalFile& file_;
  const object::ByteRange range_;
  const CopySettings& settings_;
  std::uint64_t reported_ = 0;  ///< bytes from the start of the range
};

/// Returns whether the store's part has these bytes, by its CRC-32C or its MD5.
Result<bool> SameBytes(const LocalFile& file, object::ByteRange range, const object::PartInfo& part) {
  Hasher md5(Hasher::Algorithm::kMd5);
  std::uint32_t crc = 0;
  Buffer piece(std::min(range.length, kUploadPiece));
  const CopySettings silent;
  FileSource source(file, range, silent);
  for (std::uint64_t at = 0; at < range.length;) {
    MutableByteSpan bytes = piece.span().first(std::min<std::uint64_t>(piece.size(), range.length - at));
    MR_TRY(source.Read(at, bytes));
    if (part.checksum.empty()) md5.Update(bytes);
    crc = Crc32c(bytes, crc);
    at += bytes.size();
  }
  if (part.checksum.empty()) return HexEncode(md5.Finish()) == part.etag;
  return Base64Encode(AsBytes(Crc32cChecksum(crc).value)) == part.checksum;
}

}  // namespace

Status Upload(const std::string& path, object::Store& store, const std::string& key, const object::PutOptions& put,
              const CopySettings& settings, object::Call call) {
  return Upload(MR_TRY(LocalFile::Open(path)), store, key, put, settings, std::move(call));
}

Status Upload(const LocalFile& file, object::Store& store, const std::string& key, const object::PutOptions& put,
              const CopySettings& settings, object::Call call) {
  if (file.size() <= std::min(settings.part_bytes, store.limits().max_put)) {
    FileSource source(file, {0, file.size()}, settings);
    Window window(1, call);
    if (window.Enter()) {
      store.PutFrom(key, source, put, window.call(), [&](Result<object::PutResult> done) {
        window.Leave(done ? Status() : Status(std::unexpected(done.error())));
      });
    }
    MR_TRY(window.Finish());
    source.OnSent(file.size());
    return {};
  }
  object::PutOptions options = put;
  options.uploads_only = true;
  MultipartJob job{
      .to = store,
      .key = key,
      .put = options,
      .source = file.Version(),
      .size = file.size(),
      .part_bytes = PartBytesFor(file.size(), settings.part_bytes, store.limits()),
      .send =
          [&](std::string upload_id, int number, object::ByteRange range, object::Call part_call, auto done) {
            auto source = std::make_shared<FileSource>(file, range, settings);
            store.UploadPartFrom(key, std::move(upload_id), number, *source, std::move(part_call),
                                 [source, done = std::move(done)](auto part) mutable {
                                   if (part) source->OnSent(source->size());
                                   done(std::move(part));
                                 });
          },
      .trust = [&](object::ByteRange range, const object::PartInfo& part) { return SameBytes(file, range, part); },
      .begin = nullptr,
      .check = [&] { return file.CheckUnchanged(); }};
  CopySettings parts = settings;
  parts.on_bytes = nullptr;  // each part reports its bytes itself
  return RunMultipart(job, parts, call);
}

}  // namespace millrace::transfer
