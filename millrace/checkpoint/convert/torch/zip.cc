#include "millrace/checkpoint/convert/torch/zip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

namespace millrace::checkpoint {
namespace {

// Signatures, sizes, ids and flags of PKWARE's APPNOTE.TXT, "General Format of a .ZIP file".
constexpr std::uint32_t kLocalHeader = 0x04034b50, kCentralHeader = 0x02014b50, kDescriptor = 0x08074b50;
constexpr std::uint32_t kEnd = 0x06054b50, kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr std::size_t kLocalSize = 30, kCentralSize = 46, kEndSize = 22, kEnd64Size = 56, kLocatorSize = 20;
constexpr std::uint32_t kNoSize = 0xffffffff;  ///< in a 32-bit field: the value is in the 64-bit field
constexpr std::uint16_t kZip64Extra = 0x0001;
constexpr std::uint16_t kEncrypted = 0x0001, kHasDescriptor = 0x0008, kUtf8 = 0x0800;
/// The extra field and the alignment that torch uses: "FB" in caffe2/serialize/inline_container.cc.
constexpr std::uint16_t kPaddingExtra = 0x4246;
constexpr std::uint64_t kAlignment = 64;
/// Bounds on memory. Guesses, far above what torch writes.
constexpr std::uint64_t kMaxDirectory = 256 * kMiB, kMaxName = 4096;
/// The end record is the last thing in the archive. A comment of up to 65,535 bytes may follow it, but torch writes
/// none, so the first attempt reads little.
constexpr std::uint64_t kFirstTail = 4 * kKiB, kMaxTail = 65'535 + kEndSize;

template <class T>
T Field(std::string_view text, std::size_t at) {
  return LoadLittle<T>(reinterpret_cast<const std::byte*>(text.data()) + at);
}
template <class T>
void Append(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Returns the offset of the end record whose comment ends with the last byte; npos if there is none.
std::size_t FindEnd(std::string_view tail) {
  if (tail.size() < kEndSize) return tail.npos;
  for (std::size_t at = tail.size() - kEndSize + 1; at-- > 0;) {
    if (Field<std::uint32_t>(tail, at) != kEnd) continue;
    if (at + kEndSize + Field<std::uint16_t>(tail, at + 20) == tail.size()) return at;
  }
  return tail.npos;
}

/// Replaces the values of an entry that did not fit 32 bits by those of the 64-bit extra field.
Status ReadZip64Extra(std::string_view extra, std::uint64_t& size, std::uint64_t& stored, std::uint64_t& header) {
  while (extra.size() >= 4) {
    const auto id = Field<std::uint16_t>(extra, 0);
    const std::size_t length = Field<std::uint16_t>(extra, 2);
    if (length > extra.size() - 4) break;
    std::string_view field = extra.substr(4, length);
    extra.remove_prefix(4 + length);
    if (id != kZip64Extra) continue;
    for (std::uint64_t* value : {&size, &stored, &header}) {
      if (*value != kNoSize) continue;
      if (field.size() < 8) return Fail(Code::kCorrupt, "a 64-bit field is missing");
      *value = Field<std::uint64_t>(field, 0);
      field.remove_prefix(8);
    }
    return {};
  }
  if (size == kNoSize || stored == kNoSize || header == kNoSize)
    return Fail(Code::kCorrupt, "the archive's 64-bit fields are missing");
  return {};
}

}  // namespace

std::uint32_t ZipCrc32(ByteSpan bytes, std::uint32_t seed) {
  return static_cast<std::uint32_t>(crc32_z(seed, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

Result<Zip> Zip::Open(RandomBytes& bytes) {
  Zip zip(bytes);
  auto open = [&]() -> Status {
    const Directory directory = MR_TRY(zip.FindDirectory());
    if (directory.offset > directory.end || directory.size > directory.end - directory.offset)
      return Fail(Code::kCorrupt, "the directory does not lie inside the archive");
    if (directory.size > kMaxDirectory) return Fail(Code::kResourceExhausted, "the directory is larger than 256 MiB");
    if (directory.entries > directory.size / kCentralSize)
      return Fail(Code::kCorrupt, "the directory is too short for {} entries", directory.entries);
    std::string text(directory.size, '\0');
    MR_TRY(bytes.ReadAt(directory.offset, AsWritableBytes(text)));
    zip.directory_ = directory.offset;
    MR_TRY(zip.ParseDirectory(text, directory));
    return zip.CheckExtents(directory.offset);
  };
  if (Status opened = open(); !opened) return Fail(opened.error().Context(bytes.name()));
  return zip;
}

Result<Zip::Directory> Zip::FindDirectory() const {
  const std::uint64_t size = bytes_->size();
  for (std::uint64_t most : {kFirstTail, kMaxTail}) {
    std::string tail(std::min(size, most), '\0');
    MR_TRY(bytes_->ReadAt(size - tail.size(), AsWritableBytes(tail)));
    const std::size_t at = FindEnd(tail);
    if (at == tail.npos) continue;
    const std::string_view end = std::string_view(tail).substr(at);
    const std::uint64_t begins = size - tail.size() + at;
    Directory directory{.offset = Field<std::uint32_t>(end, 16),
                        .size = Field<std::uint32_t>(end, 12),
                        .entries = Field<std::uint16_t>(end, 10),
                        .end = begins};
    if (begins < kLocatorSize) return directory;
    std::string locator(kLocatorSize, '\0');
    MR_TRY(bytes_->ReadAt(begins - kLocatorSize, AsWritableBytes(locator)));
    if (Field<std::uint32_t>(locator, 0) != kLocator64) return directory;
    return ReadZip64(Field<std::uint64_t>(locator, 8));
  }
  return Fail(Code::kCorrupt,
              "the archive does not end as a ZIP archive does: it is cut off, or not written by torch.save of torch "
              "1.6 or later");
}

Result<Zip::Directory> Zip::ReadZip64(std::uint64_t offset) const {
  if (bytes_->size() < kEnd64Size || offset > bytes_->size() - kEnd64Size)
    return Fail(Code::kCorrupt, "the archive's 64-bit end record does not lie inside the archive");
  std::string end(kEnd64Size, '\0');
  MR_TRY(bytes_->ReadAt(offset, AsWritableBytes(end)));
  if (Field<std::uint32_t>(end, 0) != kEnd64) return Fail(Code::kCorrupt, "the archive's 64-bit end record is missing");
  return Directory{.offset = Field<std::uint64_t>(end, 48),
                   .size = Field<std::uint64_t>(end, 40),
                   .entries = Field<std::uint64_t>(end, 32),
                   .end = offset};
}

Status Zip::ParseDirectory(std::string_view text, const Directory& directory) {
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    if (text.size() < kCentralSize || Field<std::uint32_t>(text, 0) != kCentralHeader)
      return Fail(Code::kCorrupt, "entry {} of its directory is damaged", i);
    const std::size_t name = Field<std::uint16_t>(text, 28), extra = Field<std::uint16_t>(text, 30);
    const std::size_t whole = kCentralSize + name + extra + Field<std::uint16_t>(text, 32);
    if (name > kMaxName || whole > text.size()) return Fail(Code::kCorrupt, "entry {} of its directory is damaged", i);
    ZipEntry entry{.name = std::string(text.substr(kCentralSize, name)),
                   .header = Field<std::uint32_t>(text, 42),
                   .size = Field<std::uint32_t>(text, 24),
                   .crc32 = Field<std::uint32_t>(text, 16)};
    std::uint64_t stored = Field<std::uint32_t>(text, 20);
    Status wide = ReadZip64Extra(text.substr(kCentralSize + name, extra), entry.size, stored, entry.header);
    if (!wide) return Fail(wide.error().Context(entry.name));
    if (Field<std::uint16_t>(text, 10) != 0 || (Field<std::uint16_t>(text, 8) & kEncrypted) != 0)
      return Fail(Code::kUnsupported, "{} is compressed or encrypted, which torch.save never does", entry.name);
    if (stored != entry.size) return Fail(Code::kCorrupt, "{} has two sizes", entry.name);
    text.remove_prefix(whole);
    entries_.push_back(std::move(entry));
  }
  std::sort(entries_.begin(), entries_.end(), [](const ZipEntry& a, const ZipEntry& b) { return a.header < b.header; });
  for (std::size_t i = 0; i < entries_.size(); ++i) by_name_.push_back(i);
  std::sort(by_name_.begin(), by_name_.end(),
            [&](std::size_t a, std::size_t b) { return entries_[a].name < entries_[b].name; });
  for (std::size_t i = 1; i < by_name_.size(); ++i) {
    if (entries_[by_name_[i]].name == entries_[by_name_[i - 1]].name)
      return Fail(Code::kCorrupt, "the archive has {} twice", entries_[by_name_[i]].name);
  }
  return {};
}

Status Zip::CheckExtents(std::uint64_t end) const {
  for (std::size_t i = entries_.size(); i-- > 0;) {
    const ZipEntry& entry = entries_[i];
    const std::uint64_t front = kLocalSize + entry.name.size();
    if (entry.header > end || end - entry.header < front || entry.size > end - entry.header - front)
      return Fail(Code::kCorrupt, "{} does not lie inside it", entry.name);
    end = entry.header;
  }
  return {};
}

const ZipEntry* Zip::Find(std::string_view name) const {
  auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                [&](std::size_t entry, std::string_view key) { return entries_[entry].name < key; });
  return found != by_name_.end() && entries_[*found].name == name ? &entries_[*found] : nullptr;
}

object::ByteRange Zip::HeaderOf(const ZipEntry& entry) { return {entry.header, kLocalSize}; }

Result<std::uint64_t> Zip::DataOffset(const ZipEntry& entry) const {
  std::string header(kLocalSize, '\0');
  MR_TRY(bytes_->ReadAt(entry.header, AsWritableBytes(header)));
  const std::uint64_t begin =
      entry.header + kLocalSize + Field<std::uint16_t>(header, 26) + Field<std::uint16_t>(header, 28);
  const auto index = static_cast<std::size_t>(&entry - entries_.data());
  const std::uint64_t end = index + 1 < entries_.size() ? entries_[index + 1].header : directory_;
  if (Field<std::uint32_t>(header, 0) != kLocalHeader || Field<std::uint16_t>(header, 26) != entry.name.size() ||
      begin > end || entry.size > end - begin) {
    return Fail(Code::kCorrupt, "{}: the header of {} is damaged", bytes_->name(), entry.name);
  }
  return begin;
}

Result<std::string> Zip::ReadAll(const ZipEntry& entry, std::uint64_t max_bytes) const {
  if (entry.size > max_bytes) {
    return Fail(Code::kResourceExhausted, "{}: {} has {} bytes, more than the {} that are read", bytes_->name(),
                entry.name, entry.size, max_bytes);
  }
  std::string content(entry.size, '\0');
  MR_TRY(bytes_->ReadAt(MR_TRY(DataOffset(entry)), AsWritableBytes(content)));
  if (entry.crc32 != 0 && ZipCrc32(AsBytes(content)) != entry.crc32)
    return Fail(Code::kCorrupt, "{}: {} is damaged: its CRC-32 does not match", bytes_->name(), entry.name);
  return content;
}

Status ZipWriter::Put(ByteSpan bytes) {
  written_ += bytes.size();
  return sink_(bytes);
}

Status ZipWriter::Begin(std::string name, std::uint64_t size) {
  const bool wide = size >= wide_from_;
  std::string header;
  Append(header, kLocalHeader);
  Append<std::uint16_t>(header, wide ? 45 : 20);
  Append<std::uint16_t>(header, kHasDescriptor | kUtf8);
  header.append(2 + 4 + 4, '\0');          // method "stored", time, and the checksum, which the descriptor has
  header.append(8, wide ? '\xff' : '\0');  // sizes: in the descriptor after the data
  Append(header, static_cast<std::uint16_t>(name.size()));
  const std::uint64_t zip64 = wide ? 20 : 0;
  const std::uint64_t fixed = written_ + kLocalSize + name.size() + zip64 + 4;
  const std::uint64_t padding = (kAlignment - fixed % kAlignment) % kAlignment;
  Append(header, static_cast<std::uint16_t>(zip64 + 4 + padding));
  header += name;
  if (wide) {
    Append(header, kZip64Extra);
    Append<std::uint16_t>(header, 16);
    Append(header, size);
    Append(header, size);
  }
  Append(header, kPaddingExtra);
  Append(header, static_cast<std::uint16_t>(padding));
  header.append(padding, 'Z');
  entries_.push_back({std::move(name), written_, size, 0});
  left_ = size;
  return Put(AsBytes(header));
}

Status ZipWriter::Write(ByteSpan bytes) {
  if (entries_.empty() || bytes.size() > left_) return Fail(Code::kInternal, "more bytes than announced for an entry");
  left_ -= bytes.size();
  entries_.back().crc32 = ZipCrc32(bytes, entries_.back().crc32);
  return Put(bytes);
}

Status ZipWriter::End() {
  if (left_ != 0) return Fail(Code::kInternal, "{} bytes of an entry are missing", left_);
  const ZipEntry& entry = entries_.back();
  std::string descriptor;
  Append(descriptor, kDescriptor);
  Append(descriptor, entry.crc32);
  for (int i = 0; i < 2; ++i) {
    if (entry.size >= wide_from_)
      Append(descriptor, entry.size);
    else
      Append(descriptor, static_cast<std::uint32_t>(entry.size));
  }
  return Put(AsBytes(descriptor));
}

Status ZipWriter::Add(std::string name, std::string_view content) {
  MR_TRY(Begin(std::move(name), content.size()));
  MR_TRY(Write(AsBytes(content)));
  return End();
}

Result<std::uint64_t> ZipWriter::Finish() {
  const std::uint64_t begin = written_;
  std::string text;
  for (const ZipEntry& entry : entries_) {
    const bool wide = entry.size >= wide_from_, far = entry.header >= wide_from_;
    Append(text, kCentralHeader);
    Append<std::uint16_t>(text, 0);
    Append<std::uint16_t>(text, wide || far ? 45 : 20);
    Append<std::uint16_t>(text, kHasDescriptor | kUtf8);
    text.append(2 + 4, '\0');
    Append(text, entry.crc32);
    for (int i = 0; i < 2; ++i) Append(text, wide ? kNoSize : static_cast<std::uint32_t>(entry.size));
    Append(text, static_cast<std::uint16_t>(entry.name.size()));
    const std::uint16_t values = (wide ? 16 : 0) + (far ? 8 : 0);
    Append(text, static_cast<std::uint16_t>(values > 0 ? values + 4 : 0));
    text.append(2 + 2 + 2 + 4, '\0');
    Append(text, far ? kNoSize : static_cast<std::uint32_t>(entry.header));
    text += entry.name;
    if (values == 0) continue;
    Append(text, kZip64Extra);
    Append(text, values);
    for (int i = 0; i < 2 && wide; ++i) Append(text, entry.size);
    if (far) Append(text, entry.header);
  }
  const std::uint64_t size = text.size(), end = begin + size, count = entries_.size();
  Append(text, kEnd64);
  Append<std::uint64_t>(text, kEnd64Size - 12);
  Append<std::uint16_t>(text, 45);
  Append<std::uint16_t>(text, 45);
  text.append(4 + 4, '\0');
  for (std::uint64_t value : {count, count, size, begin}) Append(text, value);
  Append(text, kLocator64);
  Append<std::uint32_t>(text, 0);
  Append(text, end);
  Append<std::uint32_t>(text, 1);
  Append(text, kEnd);
  text.append(2 + 2, '\0');
  for (int i = 0; i < 2; ++i) Append(text, static_cast<std::uint16_t>(std::min<std::uint64_t>(count, 0xffff)));
  Append(text, static_cast<std::uint32_t>(std::min<std::uint64_t>(size, kNoSize)));
  Append(text, static_cast<std::uint32_t>(std::min<std::uint64_t>(begin, kNoSize)));
  Append<std::uint16_t>(text, 0);
  MR_TRY(Put(AsBytes(text)));
  return written_;
}

}  // namespace millrace::checkpoint
