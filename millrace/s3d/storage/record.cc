#include "millrace/s3d/storage/record.h"

#include <chrono>

namespace millrace::s3d {
namespace {

/// Milliseconds since 1970, in the year 2255. The clock's nanoseconds overflow in 2262.
constexpr std::uint64_t kLatestTime = 9'000'000'000'000;

class Encoder {
 public:
  void Number(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += static_cast<char>(value | 0x80);
    out_ += static_cast<char>(value);
  }
  void Text(std::string_view text) {
    Number(text.size());
    out_ += text;
  }
  void Time(WallTime time) {
    Number(std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count());
  }
  void Fields(const Attributes& attributes) {
    Number(attributes.size());
    for (const auto& [name, value] : attributes) {
      Text(name);
      Text(value);
    }
  }
  void Places(const Extents& extents) {
    Number(extents.size());
    for (const Extent& extent : extents) {
      Number(extent.blob->id());
      Number(extent.offset);
      Number(extent.length);
    }
  }
  void Object(const s3d::Object& object) {
    Number(object.size);
    Time(object.modified);
    Text(object.etag);
    Fields(object.attributes);
    Number(object.checksum ? static_cast<int>(object.checksum->kind) : 0);
    if (object.checksum) {
      Number(static_cast<int>(object.checksum->type));
      Text(object.checksum->value);
    }
    Number(object.part_sizes.size());
    for (std::uint64_t size : object.part_sizes) Number(size);
    Places(object.extents);
  }
  void Upload(const s3d::Upload& upload) {
    Time(upload.initiated);
    Fields(upload.attributes);
    Number(upload.checksum_kind ? static_cast<int>(*upload.checksum_kind) : 0);
    Number(static_cast<int>(upload.checksum_type));
  }
  void Part(const StoredPart& part) {
    Number(part.size);
    Time(part.modified);
    Text(part.etag);
    Text(part.checksum);
    Places(part.extents);
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

/// Reads the fields that Encoder wrote. After the first failure every read returns an empty value and ok() is false.
class Decoder {
 public:
  Decoder(std::string_view bytes, const BlobResolver& resolve) : rest_(bytes), resolve_(resolve) {}

  bool ok() const { return ok_; }
  bool AtEnd() const { return rest_.empty(); }

  std::uint64_t Number() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    rest_ = {};
    return 0;
  }
  /// Reads the number of elements that follow. Each takes a byte at least, which bounds the memory for them.
  std::size_t Count() {
    std::uint64_t count = Number();
    if (count <= rest_.size()) return count;
    ok_ = false;
    return 0;
  }
  std::string Text() {
    std::size_t size = Count();
    std::string text(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return text;
  }
  WallTime Time() {
    std::uint64_t milliseconds = Number();
    if (milliseconds > kLatestTime) ok_ = false;
    return WallTime(std::chrono::milliseconds(ok_ ? milliseconds : 0));
  }
  std::optional<ChecksumKind> Kind() {
    std::uint64_t kind = Number();
    if (kind > 5) ok_ = false;
    if (kind == 0 || kind > 5) return std::nullopt;
    return static_cast<ChecksumKind>(kind);
  }
  ChecksumType Type() {
    std::uint64_t type = Number();
    if (type > 1) ok_ = false;
    return type == 0 ? ChecksumType::kFullObject : ChecksumType::kComposite;
  }
  Attributes Fields() {
    Attributes attributes(Count());
    for (auto& [name, value] : attributes) {
      name = Text();
      value = Text();
    }
    return attributes;
  }
  Extents Places(std::uint64_t size) {
    Extents extents(Count());
    std::uint64_t total = 0;
    for (Extent& extent : extents) {
      std::uint64_t id = Number();
      extent.offset = Number();
      extent.length = Number();
      total += extent.length;
      if (ok_) extent.blob = resolve_(id);
    }
    if (total != size) ok_ = false;
    return extents;
  }
  ObjectPtr Object() {
    auto object = std::make_shared<s3d::Object>();
    object->size = Number();
    object->modified = Time();
    object->etag = Text();
    object->attributes = Fields();
    if (auto kind = Kind()) {
      ChecksumType type = Type();
      object->checksum = StoredChecksum{*kind, type, Text()};
    }
    object->part_sizes.resize(Count());
    for (std::uint64_t& size : object->part_sizes) size = Number();
    object->extents = Places(object->size);
    return object;
  }
  s3d::Upload Upload() {
    s3d::Upload upload;
    upload.initiated = Time();
    upload.attributes = Fields();
    upload.checksum_kind = Kind();
    upload.checksum_type = Type();
    return upload;
  }
  StoredPart Part() {
    StoredPart part;
    part.size = Number();
    part.modified = Time();
    part.etag = Text();
    part.checksum = Text();
    part.extents = Places(part.size);
    return part;
  }

 private:
  std::string_view rest_;
  const BlobResolver& resolve_;
  bool ok_ = true;
};

bool HasUploadId(Record::Type type) { return type >= Record::Type::kCreateUpload; }

}  // namespace

std::string EncodeRecord(const Record& record) {
  using enum Record::Type;
  Encoder out;
  out.Number(static_cast<int>(record.type));
  out.Text(record.bucket);
  if (record.type == kCreateBucket) out.Time(record.time);
  if (record.type >= kPutObject) out.Text(record.key);
  if (HasUploadId(record.type)) out.Text(record.upload_id);
  if (record.type == kPutObject || record.type == kCompleteUpload) out.Object(*record.object);
  if (record.type == kCreateUpload) out.Upload(record.upload);
  if (record.type == kPutPart) {
    out.Number(record.part_number);
    out.Part(record.part);
  }
  return out.Take();
}

Result<Record> DecodeRecord(std::string_view bytes, const BlobResolver& resolve) {
  using enum Record::Type;
  Decoder in(bytes, resolve);
  Record record;
  std::uint64_t type = in.Number();
  if (type < 1 || type > 8) return Fail(Code::kCorrupt, "a record of the unknown type {}", type);
  record.type = static_cast<Record::Type>(type);
  record.bucket = in.Text();
  if (record.type == kCreateBucket) record.time = in.Time();
  if (record.type >= kPutObject) record.key = in.Text();
  if (HasUploadId(record.type)) record.upload_id = in.Text();
  if (record.type == kPutObject || record.type == kCompleteUpload) record.object = in.Object();
  if (record.type == kCreateUpload) record.upload = in.Upload();
  if (record.type == kPutPart) {
    record.part_number = static_cast<int>(in.Number() & 0xffff);
    record.part = in.Part();
  }
  if (!in.ok() || !in.AtEnd()) return Fail(Code::kCorrupt, "a record of type {} is malformed", type);
  return record;
}

}  // namespace millrace::s3d
