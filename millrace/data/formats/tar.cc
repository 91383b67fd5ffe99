#include "millrace/data/formats/tar.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "millrace/base/text.h"
#include "millrace/data/compression/decoder.h"
#include "millrace/data/formats/record_lines.h"
#include "millrace/data/formats/tar_sparse.h"

namespace millrace::data {
namespace {

constexpr std::size_t kBlock = 512;  // POSIX pax, "ustar Interchange Format"; so are the offsets in headers below
/// The longest GNU long name. A guess: 16 times PATH_MAX of Linux.
constexpr std::size_t kMaxNameBytes = 64 * kKiB;
/// The most bytes of pax headers. A guess: they can hold the map of a sparse file with some hundred thousand extents.
constexpr std::size_t kMaxPaxBytes = 4 * kMiB;

/// Returns a text field of a header. The text ends at the first NUL or at the end of the field.
std::string_view TextAt(std::string_view header, std::size_t at, std::size_t size) {
  std::string_view field = header.substr(at, size);
  return field.substr(0, field.find('\0'));
}

bool ChecksumHolds(std::string_view header) {
  constexpr std::size_t kAt = 148, kSize = 8;  // chksum; counts as blanks in its own sum
  std::int64_t sum = 0, of_signed = 0;         // some old programs summed signed bytes
  for (std::size_t i = 0; i < kBlock; ++i) {
    const bool is_blank = i >= kAt && i < kAt + kSize;
    sum += is_blank ? ' ' : static_cast<unsigned char>(header[i]);
    of_signed += is_blank ? ' ' : static_cast<signed char>(header[i]);
  }
  const auto said = TarNumberAt(header, kAt, kSize);
  return said && (static_cast<std::int64_t>(*said) == sum || static_cast<std::int64_t>(*said) == of_signed);
}

/// The pax headers of a member. Each is "length key=value\n".
struct PaxHeaders {
  std::string path;
  std::optional<std::uint64_t> size;
  PaxSparse sparse;
};
Status ReadPax(std::string_view records, PaxHeaders& headers) {
  while (!records.empty()) {
    std::size_t length = 0;
    const auto parsed = std::from_chars(records.data(), records.data() + records.size(), length);
    const auto digits = static_cast<std::size_t>(parsed.ptr - records.data());
    if (parsed.ec != std::errc() || length <= digits + 1 || length > records.size() || records[digits] != ' ' ||
        records[length - 1] != '\n') {
      return Fail(Code::kCorrupt, "a damaged pax header");
    }
    std::string_view record = records.substr(digits + 1, length - digits - 2);
    records.remove_prefix(length);
    const std::size_t equals = record.find('=');
    if (equals == record.npos) return Fail(Code::kCorrupt, "a damaged pax header");
    std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") headers.path = value;
    if (!headers.sparse.Take(key, value)) {
      return Fail(Code::kCorrupt, "a pax header with {}={}, which cannot be read,", key, value.substr(0, 64));
    }
    if (key == "size") {
      std::uint64_t bytes = 0;
      if (std::from_chars(value.data(), value.data() + value.size(), bytes).ptr != value.data() + value.size()) {
        return Fail(Code::kCorrupt, "a damaged pax header");
      }
      headers.size = bytes;
    }
  }
  return {};
}

/// The sample of a file, and its field in the sample. Empty extension: the file is in no sample.
struct SampleField {
  std::string_view key;
  std::string extension;
};
SampleField FieldOf(const TarMember& member) {
  if (!member.is_file) return {};
  std::string_view name = member.name;
  const std::size_t slash = name.rfind('/');
  const std::size_t base = slash == name.npos ? 0 : slash + 1;
  const std::size_t dot = name.find('.', base);
  if (dot == name.npos || dot == base || name.substr(base).starts_with("__")) return {};
  return {name.substr(0, dot), ToLower(name.substr(dot + 1))};
}

std::unexpected<Error> CutOff(std::uint64_t member) {
  return Fail(Code::kCorrupt, "the tar archive is cut off in its member at byte {}", member);
}

/// Returns the decoded bytes of a file that gzip made, or the first kMaxRecordBytes + 1 of them.
Result<std::string> Unzip(std::string_view data, std::string_view name) {
  MemoryInputStream input(AsBytes(data));
  const auto decoder = MR_TRY(MakeDecoder(Compression::kGzip, input, {}));
  std::string decoded;
  Buffer step(64 * kKiB);
  for (bool at_end = false; !at_end && decoded.size() <= kMaxRecordBytes;) {
    const auto some = decoder->Decode(step.span(), false);
    if (!some) return Fail(Code::kCorrupt, "{} in the tar archive cannot be decoded: {}", name, some.error().message());
    decoded += AsText(step.span().first(some->bytes));
    at_end = some->at_end;
  }
  decoded.resize(std::min<std::size_t>(decoded.size(), kMaxRecordBytes + 1));
  return decoded;
}

class TarSplitter final : public RecordSplitter {
 public:
  Result<std::optional<std::size_t>> Find(std::string_view bytes, std::size_t at_least, bool at_end) override {
    while (!ended_ && at_ < bytes.size()) {
      auto member = MR_TRY(ReadTarMember(bytes, at_, offset_));
      if (!member) {
        if (at_end) return CutOff(offset_ + at_);
        return std::nullopt;
      }
      const std::size_t start = std::exchange(at_, member->end);
      ended_ = member->ends_archive;
      SampleField field = FieldOf(*member);
      if (field.extension.empty() || field.key == key_) continue;
      key_ = field.key;
      if (start >= at_least) return start;
    }
    if (at_end) return bytes.size();
    return std::nullopt;
  }
  void Restart(std::uint64_t offset) override {
    *this = TarSplitter();
    offset_ = offset;
  }

 private:
  std::uint64_t offset_ = 0;
  std::size_t at_ = 0;
  std::string key_;
  bool ended_ = false;
};

/// Makes the lines of samples, file by file.
class SampleLines {
 public:
  /// Adds a file. If it has another key than the file before, ends the sample first.
  Status Add(const SampleField& field, std::string_view data) {
    if (field.key != key_) {
      MR_TRY(Finish());
      key_ = field.key;
    }
    const std::string& extension = field.extension;
    const bool is_json = extension == "json" || extension == "jsn";
    if (is_json) {
      std::string_view object = Trim(data);
      if (object.starts_with('{') && object.ends_with('}')) {
        AddMembers(object);
        return {};
      }
    }
    constexpr std::array<std::string_view, 3> kText = {"txt", "text", "transcript"};
    const bool is_text = is_json || std::ranges::find(kText, extension) != kText.end();
    if (!is_text && (data.find('\0') != data.npos || !IsValidUtf8(data))) return {};
    Begin();
    lines_.Append("\"");
    lines_.AppendText(extension);
    lines_.Append("\":\"");
    lines_.AppendText(data);
    lines_.Append("\"");
    return {};
  }

  /// Ends the sample. A sample without fields, whose files are not text, has no line.
  Status Finish() {
    if (!std::exchange(open_, false)) return {};
    lines_.Append("}");
    return lines_.EndRecord();
  }

  Buffer Take() { return lines_.TakeLines(); }

 private:
  /// Begins a field, and before the first field the line.
  void Begin() {
    if (!std::exchange(open_, true)) {
      lines_.Append("{\"__key__\":\"");
      lines_.AppendText(key_);
      lines_.Append("\"");
    }
    lines_.Append(",");
  }

  void AddMembers(std::string_view object) {
    std::string members(object.size(), '\0');
    std::size_t size = 0;
    // minify fails only on a string that is not closed. Such members stay, and the line's parser rejects them.
    if (simdjson::minify(object.data(), object.size(), members.data(), size)) {
      members = object;
    } else {
      members.resize(size);
    }
    // A newline that is left is inside a string, where JSON does not allow it. Another invalid byte keeps the record
    // on one line, and broken.
    std::ranges::replace(members, '\n', '\x01');
    std::string_view inside = std::string_view(members).substr(1, members.size() - 2);
    if (Trim(inside).empty()) return;
    Begin();
    lines_.Append(inside);
  }

  RecordLines lines_;
  std::string key_;
  bool open_ = false;  ///< the current sample has a field
};

class Tar final : public Syntax {
 public:
  std::unique_ptr<RecordSplitter> NewSplitter() const override { return std::make_unique<TarSplitter>(); }

  Result<Buffer> ToLines(Buffer records, std::uint64_t offset) const override {
    SampleLines samples;
    std::string_view bytes = AsText(records);
    for (std::size_t at = 0; at < bytes.size();) {
      auto member = MR_TRY(ReadTarMember(bytes, at, offset));
      if (!member) return CutOff(offset + at);
      if (member->ends_archive) break;
      at = member->end;
      SampleField field = FieldOf(*member);
      if (field.extension.empty()) continue;
      std::string expanded;
      if (member->is_sparse) expanded = ExpandSparse(*member, kMaxRecordBytes + 1);
      std::string_view data = member->is_sparse ? expanded : member->data;
      constexpr std::string_view kZipped = ".gz";
      if (field.extension.ends_with(kZipped)) {
        field.extension.resize(field.extension.size() - kZipped.size());
        data = expanded = MR_TRY(Unzip(data, member->name));
      }
      MR_TRY(samples.Add(field, data));
    }
    MR_TRY(samples.Finish());
    return samples.Take();
  }
};

std::string NameOf(std::string_view header, const std::string& long_name, const PaxHeaders& pax) {
  if (!pax.sparse.name.empty()) return pax.sparse.name;
  if (!pax.path.empty()) return pax.path;
  if (!long_name.empty()) return long_name;
  const std::string_view name = TextAt(header, 0, 100);
  const std::string_view prefix =
      header.substr(257, 6) == std::string_view("ustar\0", 6) ? TextAt(header, 345, 155) : "";
  return prefix.empty() ? std::string(name) : fmt::format("{}/{}", prefix, name);
}

/// Returns false if the headers of a sparse file contradict each other or its size.
bool ApplyPaxSparse(const PaxSparse& sparse, TarMember& member) {
  if (!sparse.is_sparse || !member.is_file) return true;
  std::vector<std::uint64_t> map = sparse.map;
  if (sparse.map_in_data && !TakeMapFromData(member.data, map)) return false;
  return sparse.size && SetExtents(map, *sparse.size, member);
}

}  // namespace

Result<std::optional<TarMember>> ReadTarMember(std::string_view bytes, std::size_t at, std::uint64_t offset) {
  std::string long_name;
  PaxHeaders pax;
  while (true) {
    if (bytes.size() - at < kBlock) return std::nullopt;
    std::string_view header = bytes.substr(at, kBlock);
    if (header.find_first_not_of('\0') == header.npos) return TarMember{.end = bytes.size(), .ends_archive = true};
    const char type = header[156];
    auto size = TarNumberAt(header, 124, 12);
    if (!ChecksumHolds(header) || !size) {
      return Fail(Code::kCorrupt, "no tar header at byte {}: its checksum does not hold", offset + at);
    }
    const bool is_pax = type == 'x' || type == 'X', names_next = type == 'L' || is_pax;
    if (names_next && *size > (is_pax ? kMaxPaxBytes : kMaxNameBytes)) {
      return Fail(Code::kCorrupt, "a tar header of {} bytes at byte {}", *size, offset + at);
    }
    auto at_byte = [&](const Error& error) {
      return Fail(Code::kCorrupt, "{} at byte {}", error.message(), offset + at);
    };
    std::size_t data_at = at + kBlock;
    OldSparse old;
    if (type == 'S') {
      auto map = ReadOldSparse(bytes, at);
      if (!map) return at_byte(map.error());
      if (!*map) return std::nullopt;
      old = **std::move(map);
      data_at = old.end;
    }
    const bool has_data = type != '1' && type != '2' && type != '3' && type != '4' && type != '5' && type != '6';
    if (!names_next && pax.size) size = pax.size;
    const std::uint64_t stored = has_data ? *size : 0;
    const std::size_t left = bytes.size() - data_at;
    if (stored > left || (stored + kBlock - 1) / kBlock * kBlock > left) return std::nullopt;
    std::string_view data = bytes.substr(data_at, stored);
    const std::size_t next = data_at + (stored + kBlock - 1) / kBlock * kBlock;
    if (type == 'L') {
      long_name = data.substr(0, data.find('\0'));
    } else if (is_pax) {
      auto read = ReadPax(data, pax);
      if (!read) return at_byte(read.error());
    } else if (type != 'g' && type != 'K') {
      TarMember member{.name = NameOf(header, long_name, pax),
                       .data = data,
                       .size = stored,
                       .end = next,
                       .is_file = type == '0' || type == '\0' || type == '7' || type == 'S'};
      if (type == 'S' ? !SetExtents(old.map, old.size, member) : !ApplyPaxSparse(pax.sparse, member)) {
        return Fail(Code::kCorrupt, "the map of the sparse file {} at byte {} does not fit it", member.name,
                    offset + at);
      }
      return member;
    }
    at = next;
  }
}

std::unique_ptr<const Syntax> MakeTarSyntax() { return std::make_unique<Tar>(); }

}  // namespace millrace::data
