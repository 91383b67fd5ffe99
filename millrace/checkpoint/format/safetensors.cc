#include "millrace/checkpoint/format/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "millrace/base/json.h"

namespace millrace::checkpoint {
namespace {

constexpr std::uint64_t kAlignment = 8;  // the size of the largest element type
constexpr std::string_view kMetadata = "__metadata__";
constexpr int kMaxDepth = 3;  // the header, a tensor, its shape

/// Parses into nlohmann::json, whose objects find members by name in logarithmic time. Json's objects search linearly.
Result<nlohmann::json> ParseHeaderJson(std::string_view text, std::string_view name) {
  auto json = ParseJsonTree(text, "its header", {.depth = kMaxDepth});
  if (json && json->is_object()) return json;
  return Fail(Code::kCorrupt, "{}: its header is not a safetensors header{}", name,
              json ? "" : fmt::format(" ({})", json.error().message()));
}

struct Extent {
  std::uint64_t begin = 0, end = 0;
};

Result<Extent> ParseOffsets(const nlohmann::json& entry) {
  auto found = entry.find("data_offsets");
  if (found == entry.end() || !found->is_array() || found->size() != 2 || !(*found)[0].is_number_unsigned() ||
      !(*found)[1].is_number_unsigned()) {
    return Fail(Code::kCorrupt, "the tensor has no data_offsets");
  }
  Extent extent{(*found)[0].get<std::uint64_t>(), (*found)[1].get<std::uint64_t>()};
  if (extent.begin > extent.end) return Fail(Code::kCorrupt, "the tensor's data_offsets run backwards");
  return extent;
}

Result<TensorMeta> ParseMeta(const nlohmann::json& entry, const std::string& name) {
  TensorMeta meta;
  auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) return Fail(Code::kCorrupt, "the tensor has no dtype");
  meta.dtype = MR_TRY(ParseDType(dtype->get_ref<const std::string&>()));
  auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array()) return Fail(Code::kCorrupt, "the tensor has no shape");
  for (const auto& dimension : *shape) {
    if (!dimension.is_number_unsigned() || dimension.get<std::uint64_t>() > INT64_MAX)
      return Fail(Code::kCorrupt, "the tensor's shape is impossible");
    meta.shape.push_back(dimension.get<std::int64_t>());
  }
  MR_TRY(meta.Check(name));
  return meta;
}

Result<SafetensorsEntry> ParseEntry(const std::string& name, const nlohmann::json& json) {
  if (!json.is_object()) return Fail(Code::kCorrupt, "the tensor is not an object");
  Extent extent = MR_TRY(ParseOffsets(json));
  TensorMeta meta = MR_TRY(ParseMeta(json, name));
  SafetensorsEntry entry{name, std::move(meta), extent.begin};
  if (entry.meta.bytes() != extent.end - extent.begin) {
    return Fail(Code::kCorrupt, "the tensor's shape needs {} bytes, the data_offsets give {}", entry.meta.bytes(),
                extent.end - extent.begin);
  }
  return entry;
}

}  // namespace

std::string MakeSafetensorsHeader(std::vector<SafetensorsEntry>& entries,
                                  const std::map<std::string, std::string>& metadata) {
  std::string header(8, '\0');
  header += '{';
  if (!metadata.empty()) {
    header += fmt::format("\"{}\":{}{}", kMetadata, DumpJson(Json(metadata)), entries.empty() ? "" : ",");
  }
  std::uint64_t end = 0;
  for (SafetensorsEntry& entry : entries) {
    entry.offset = end;
    end += entry.meta.bytes();
    header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          &entry == entries.data() ? "" : ",", DumpJson(entry.name), DTypeName(entry.meta.dtype),
                          fmt::join(entry.meta.shape, ","), entry.offset, end);
  }
  header += '}';
  header.append((kAlignment - header.size() % kAlignment) % kAlignment, ' ');
  StoreLittle<std::uint64_t>(AsWritableBytes(header).data(), header.size() - 8);
  for (SafetensorsEntry& entry : entries) entry.offset += header.size();
  return header;
}

Result<std::uint64_t> ParseSafetensorsLength(ByteSpan first_8_bytes, std::uint64_t file_size, std::string_view name) {
  if (first_8_bytes.size() < 8)
    return Fail(Code::kCorrupt, "{} has {} bytes: too short for safetensors", name, file_size);
  auto length = LoadLittle<std::uint64_t>(first_8_bytes.data());
  if (length < 2 || length > kMaxSafetensorsHeader || length > file_size - 8) {
    return Fail(Code::kCorrupt, "{} announces a header of {} bytes in a file of {}: not a safetensors file, or cut off",
                name, length, file_size);
  }
  return length;
}

Result<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(std::string_view json, std::uint64_t file_size,
                                                             std::string_view name) {
  nlohmann::json header = MR_TRY(ParseHeaderJson(json, name));
  std::vector<SafetensorsEntry> entries;
  for (const auto& [tensor, value] : header.items()) {
    if (tensor == kMetadata) continue;
    auto entry = ParseEntry(tensor, value);
    if (!entry) return Fail(entry.error().Context(fmt::format("{}: tensor {}", name, tensor)));
    entries.push_back(*std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.offset, a.meta.bytes()) < std::pair(b.offset, b.meta.bytes());
  });
  std::uint64_t data = 8 + json.size(), end = 0;
  for (SafetensorsEntry& entry : entries) {
    if (entry.offset != end) {
      return Fail(Code::kCorrupt, "{}: tensor {} starts at data offset {}, the one before it ends at {}", name,
                  entry.name, entry.offset, end);
    }
    end += entry.meta.bytes();  // cannot overflow: each is below 2^63, and the next line bounds the sum
    if (end > file_size) break;
    entry.offset += data;
  }
  if (end != file_size - data) {
    return Fail(Code::kCorrupt, "{}: its tensors need {} bytes of data, it has {}", name, end, file_size - data);
  }
  return entries;
}

std::string MissingShard(const std::set<std::string>& files) {
  constexpr std::string_view kOf = "-of-", kSuffix = ".safetensors";
  constexpr std::size_t kMaxDigits = 9;  // of a shard's number: fits 32 bits
  const auto number = [](std::string_view text) -> std::optional<std::uint64_t> {
    if (text.empty() || text.size() > kMaxDigits || text.find_first_not_of("0123456789") != text.npos) return {};
    return std::strtoull(std::string(text).c_str(), nullptr, 10);
  };
  struct ShardSet {
    std::uint64_t count = 0;
    std::size_t width = 0;  ///< digits of a shard's number
    std::set<std::uint64_t> there;
  };
  std::map<std::pair<std::string, std::string>, ShardSet> sets;  // by the text before and after the number
  for (const std::string& file : files) {
    if (!file.ends_with(kSuffix)) continue;
    const std::string_view stem = std::string_view(file).substr(0, file.size() - kSuffix.size());
    const std::size_t of = stem.rfind(kOf), dash = of == stem.npos || of == 0 ? stem.npos : stem.rfind('-', of - 1);
    if (dash == stem.npos) continue;
    const auto index = number(stem.substr(dash + 1, of - dash - 1)), count = number(stem.substr(of + kOf.size()));
    if (!index || !count) continue;
    ShardSet& set = sets[{file.substr(0, dash + 1), file.substr(of)}];
    set.count = *count;
    set.width = of - dash - 1;
    set.there.insert(*index);
  }
  for (const auto& [name, set] : sets) {
    std::uint64_t next = 1;
    while (set.there.contains(next)) ++next;
    if (next <= set.count) return fmt::format("{}{:0{}}{}", name.first, next, set.width, name.second);
  }
  return "";
}

}  // namespace millrace::checkpoint
