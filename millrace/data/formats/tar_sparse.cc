#include "millrace/data/formats/tar_sparse.h"

#include <algorithm>
#include <charconv>

#include "millrace/base/text.h"

namespace millrace::data {
namespace {

constexpr std::size_t kTarBlock = 512;
// GNU tar's tar.h, struct oldgnu_header: offsets of sp, isextended and realsize, and the number of entries in sp.
constexpr std::size_t kMapAt = 386, kMapEntries = 4, kMoreAt = 482, kSizeAt = 483;
// struct sparse_header, a block with more of the map: entries, and the offset of isextended.
constexpr std::size_t kBlockEntries = 21, kBlockMoreAt = 504;
constexpr std::size_t kNumberBytes = 12;  // of an offset or length in a map

std::optional<std::uint64_t> Decimal(std::string_view text) {
  std::uint64_t value = 0;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto parsed = std::from_chars(begin, end, value);
  return parsed.ec == std::errc() && parsed.ptr == end ? std::optional(value) : std::nullopt;
}

/// Appends the entries of a map, except unused ones. Returns false if one is invalid.
bool ReadEntries(std::string_view block, std::size_t at, std::size_t entries, std::vector<std::uint64_t>& map) {
  for (std::size_t i = 0; i < entries; ++i, at += 2 * kNumberBytes) {
    if (block[at + kNumberBytes] == '\0') continue;
    const auto offset = TarNumberAt(block, at, kNumberBytes);
    const auto bytes = TarNumberAt(block, at + kNumberBytes, kNumberBytes);
    if (!offset || !bytes) return false;
    map.push_back(*offset);
    map.push_back(*bytes);
  }
  return true;
}

}  // namespace

std::optional<std::uint64_t> TarNumberAt(std::string_view header, std::size_t at, std::size_t size) {
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

bool PaxSparse::Take(std::string_view key, std::string_view value) {
  constexpr std::string_view kPrefix = "GNU.sparse.";
  if (!key.starts_with(kPrefix)) return true;
  key.remove_prefix(kPrefix.size());
  is_sparse = true;
  if (key == "name") {
    name = value;
    return true;
  }
  if (key == "map") {
    map.clear();
    for (std::string_view number : Split(value, ',')) {
      const auto parsed = Decimal(number);
      if (!parsed) return false;
      map.push_back(*parsed);
    }
    return true;
  }
  const auto number = Decimal(value);
  if (!number) return false;
  if (key == "major") map_in_data = *number == 1;
  if (key == "major" && *number > 1) return false;
  if (key == "size" || key == "realsize") size = number;
  if (key == "offset" || key == "numbytes") map.push_back(*number);
  return true;
}

Result<std::optional<OldSparse>> ReadOldSparse(std::string_view bytes, std::size_t header_at) {
  OldSparse sparse{.end = header_at + kTarBlock};
  std::string_view header = bytes.substr(header_at, kTarBlock);
  const auto size = TarNumberAt(header, kSizeAt, kNumberBytes);
  bool is_right = size && ReadEntries(header, kMapAt, kMapEntries, sparse.map);
  bool more = header[kMoreAt] != '\0';
  while (is_right && more) {
    if (bytes.size() - sparse.end < kTarBlock) return std::nullopt;
    std::string_view block = bytes.substr(sparse.end, kTarBlock);
    is_right = ReadEntries(block, 0, kBlockEntries, sparse.map);
    more = block[kBlockMoreAt] != '\0';
    sparse.end += kTarBlock;
  }
  if (!is_right) return Fail(Code::kCorrupt, "the map of a sparse file is damaged");
  sparse.size = *size;
  return sparse;
}

bool TakeMapFromData(std::string_view& data, std::vector<std::uint64_t>& map) {
  std::size_t at = 0;
  auto next = [&]() -> std::optional<std::uint64_t> {
    const std::size_t end = data.find('\n', at);
    if (end == data.npos) return std::nullopt;
    const auto number = Decimal(data.substr(at, end - at));
    at = end + 1;
    return number;
  };
  const auto entries = next();
  if (!entries || *entries > data.size()) return false;
  for (std::uint64_t i = 0; i < 2 * *entries; ++i) {
    const auto number = next();
    if (!number) return false;
    map.push_back(*number);
  }
  const std::size_t padded = (at + kTarBlock - 1) / kTarBlock * kTarBlock;
  if (padded > data.size()) return false;
  data.remove_prefix(padded);
  return true;
}

bool SetExtents(const std::vector<std::uint64_t>& map, std::uint64_t size, TarMember& member) {
  if (map.size() % 2 != 0) return false;
  std::uint64_t end = 0, stored = 0;
  for (std::size_t i = 0; i < map.size(); i += 2) {
    const TarExtent extent{map[i], map[i + 1]};
    if (extent.offset < end || extent.offset > size || extent.bytes > size - extent.offset) return false;
    end = extent.offset + extent.bytes;
    stored += extent.bytes;
    if (extent.bytes > 0) member.extents.push_back(extent);
  }
  member.is_sparse = true;
  member.size = size;
  return stored == member.data.size();
}

std::string ExpandSparse(const TarMember& member, std::uint64_t most) {
  std::string file(std::min(member.size, most), '\0');
  std::size_t at = 0;
  for (const TarExtent& extent : member.extents) {
    if (extent.offset >= file.size()) break;
    const std::uint64_t bytes = std::min(extent.bytes, file.size() - extent.offset);
    file.replace(extent.offset, bytes, member.data.substr(at, bytes));
    at += extent.bytes;
  }
  return file;
}

}  // namespace millrace::data
