#include "millrace/data/formats/tar.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "millrace/base/text.h"

namespace millrace::data {
namespace {

constexpr std::size_t kBlock = 512;
constexpr std::size_t kMaxNameBytes = 64 * kKiB;

/// Of a header: text that ends at the first NUL or the end of its place.
std::string_view TextAt(std::string_view header, std::size_t at, std::size_t size) {
  std::string_view field = header.substr(at, size);
  return field.substr(0, field.find('\0'));
}

/// Octal digits, or base 256 when the first bit is set (GNU).
std::optional<std::uint64_t> NumberAt(std::string_view header, std::size_t at, std::size_t size) {
  std::string_view field = header.substr(at, size);
  std::uint64_t value = 0;
  if (static_cast<unsigned char>(field[0]) & 0x80) {
    for (std::size_t i = 0; i < size; ++i) {
      const auto byte = static_cast<unsigned char>(i == 0 ? field[0] & 0x7f : field[i]);
      if (value >> 55) return std::nullopt;
      value = value << 8 | byte;
    }
    return value;
  }
  field = Trim(field.substr(0, field.find('\0')));
  for (char digit : field) {
    if (digit < '0' || digit > '7' || value >> 60) return std::nullopt;
    value = value << 3 | static_cast<std::uint64_t>(digit - '0');
  }
  return value;
}

bool ChecksumHolds(std::string_view header) {
  constexpr std::size_t kAt = 148, kSize = 8;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    sum += i >= kAt && i < kAt + kSize ? ' ' : static_cast<unsigned char>(header[i]);
  }
  return NumberAt(header, kAt, kSize) == sum;
}

/// What pax headers say about the file behind them: "length key=value\n" each.
Status ReadPax(std::string_view records, std::string& path, std::optional<std::uint64_t>& size) {
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
    if (key == "path") path = value;
    if (key == "size") {
      std::uint64_t bytes = 0;
      if (std::from_chars(value.data(), value.data() + value.size(), bytes).ptr != value.data() + value.size()) {
        return Fail(Code::kCorrupt, "a damaged pax header");
      }
      size = bytes;
    }
  }
  return {};
}

/// Where a file belongs: its sample and its field there. An empty extension: nowhere.
struct Place {
  std::string_view key;
  std::string extension;
};
Place PlaceOf(const TarMember& member) {
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

class TarCutter final : public Cutter {
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
      Place place = PlaceOf(*member);
      if (place.extension.empty() || place.key == key_) continue;
      key_ = place.key;
      if (start >= at_least) return start;
    }
    if (at_end) return bytes.size();
    return std::nullopt;
  }
  void Restart(std::uint64_t offset) override {
    *this = TarCutter();
    offset_ = offset;
  }

 private:
  std::uint64_t offset_ = 0;
  std::size_t at_ = 0;
  std::string key_;
  bool ended_ = false;
};

/// The line of one sample, file by file.
class Sample {
 public:
  const std::string& key() const { return key_; }

  void Start(std::string_view key) {
    key_ = key;
    fields_.clear();
  }

  void Add(const std::string& extension, std::string_view data) {
    constexpr std::array<std::string_view, 3> kText = {"txt", "text", "transcript"};
    if (extension == "json" || extension == "jsn") {
      std::string_view object = Trim(data);
      if (object.starts_with('{') && object.ends_with('}')) return AddMembers(object);
    }
    const bool text = std::ranges::find(kText, extension) != kText.end() || extension == "json" || extension == "jsn";
    if (!text && (data.find('\0') != data.npos || !IsValidUtf8(data))) return;
    fields_ += ",\"";
    AppendEscaped(extension, fields_);
    fields_ += "\":\"";
    AppendEscaped(data, fields_);
    fields_ += '"';
  }

  /// A sample without fields is none: its files are not text.
  void Finish(std::string& lines) {
    if (fields_.empty()) return;
    lines += "{\"__key__\":\"";
    AppendEscaped(key_, lines);
    lines += '"';
    lines += fields_;
    lines += "}\n";
    fields_.clear();
  }

 private:
  void AddMembers(std::string_view object) {
    std::string members(object.size(), '\0');
    std::size_t size = 0;
    // Only strings that are not closed fail here; as they are, they fail again where the line is parsed.
    if (simdjson::minify(object.data(), object.size(), members.data(), size)) {
      members = object;
    } else {
      members.resize(size);
    }
    // Inside of strings, where JSON allows no line ends: the line must stay one, and broken.
    std::ranges::replace(members, '\n', '\x01');
    std::string_view inside = std::string_view(members).substr(1, members.size() - 2);
    if (Trim(inside).empty()) return;
    fields_ += ',';
    fields_ += inside;
  }

  std::string key_, fields_;
};

class Tar final : public Syntax {
 public:
  std::unique_ptr<Cutter> NewCutter() const override { return std::make_unique<TarCutter>(); }

  Result<Buffer> ToLines(Buffer records, std::uint64_t offset) const override {
    std::string lines;
    Sample sample;
    std::string_view bytes = AsText(records);
    for (std::size_t at = 0; at < bytes.size();) {
      auto member = MR_TRY(ReadTarMember(bytes, at, offset));
      if (!member) return CutOff(offset + at);
      if (member->ends_archive) break;
      at = member->end;
      Place place = PlaceOf(*member);
      if (place.extension.empty()) continue;
      if (place.key != sample.key()) {
        sample.Finish(lines);
        sample.Start(place.key);
      }
      sample.Add(place.extension, member->data);
    }
    sample.Finish(lines);
    return ToBuffer(lines);
  }
};

}  // namespace

Result<std::optional<TarMember>> ReadTarMember(std::string_view bytes, std::size_t at, std::uint64_t offset) {
  TarMember member;
  std::string long_name, pax_path;
  std::optional<std::uint64_t> pax_size;
  while (true) {
    if (bytes.size() - at < kBlock) return std::nullopt;
    std::string_view header = bytes.substr(at, kBlock);
    if (header.find_first_not_of('\0') == header.npos) {
      member.ends_archive = true;
      member.end = bytes.size();
      return member;
    }
    const char type = header[156];
    auto size = NumberAt(header, 124, 12);
    if (!ChecksumHolds(header) || !size) {
      return Fail(Code::kCorrupt, "no tar header at byte {}: its checksum does not hold", offset + at);
    }
    const bool names_next = type == 'L' || type == 'x';
    if (names_next && *size > kMaxNameBytes) {
      return Fail(Code::kCorrupt, "a tar header of {} bytes at byte {}", *size, offset + at);
    }
    const bool has_data = type != '1' && type != '2' && type != '3' && type != '4' && type != '5' && type != '6';
    if (!names_next && pax_size) size = pax_size;
    const std::uint64_t stored = has_data ? *size : 0;
    const std::size_t left = bytes.size() - at - kBlock;
    if (stored > left || (stored + kBlock - 1) / kBlock * kBlock > left) return std::nullopt;
    std::string_view data = bytes.substr(at + kBlock, stored);
    const std::size_t next = at + kBlock + (stored + kBlock - 1) / kBlock * kBlock;
    if (type == 'L') {
      long_name = data.substr(0, data.find('\0'));
    } else if (type == 'x') {
      auto read = ReadPax(data, pax_path, pax_size);
      if (!read) return Fail(Code::kCorrupt, "{} at byte {}", read.error().message(), offset + at);
    } else if (type != 'g' && type != 'K') {
      std::string_view prefix = header.substr(257, 6) == std::string_view("ustar\0", 6) ? TextAt(header, 345, 155) : "";
      member.name = !pax_path.empty()    ? pax_path
                    : !long_name.empty() ? long_name
                    : prefix.empty()     ? std::string(TextAt(header, 0, 100))
                                         : fmt::format("{}/{}", prefix, TextAt(header, 0, 100));
      member.data = data;
      member.end = next;
      member.is_file = type == '0' || type == '\0' || type == '7';
      return member;
    }
    at = next;
  }
}

std::unique_ptr<const Syntax> MakeTarSyntax() { return std::make_unique<Tar>(); }

}  // namespace millrace::data
