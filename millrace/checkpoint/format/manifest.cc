#include "millrace/checkpoint/format/manifest.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "millrace/base/files/confine.h"
#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/text_encoding.h"

namespace millrace::checkpoint {
namespace {

constexpr std::string_view kFormat = "millrace-checkpoint";
constexpr std::string_view kCrcMember = ",\"crc32c\":\"";
constexpr std::string_view kEnd = "\"}\n";
constexpr std::size_t kCrcDigits = 8;
constexpr std::size_t kTail = kCrcMember.size() + kCrcDigits + kEnd.size();

/// Sizes of files are signed 64-bit integers in many interfaces.
constexpr std::uint64_t kMaxFileBytes = std::numeric_limits<std::int64_t>::max();
/// The limits of Writer::Options::chunk_bytes. A guess: smaller chunks make large manifests, larger ones slow reads.
constexpr std::uint64_t kLeastChunk = 4 * kKiB, kMaxChunk = 1 * kGiB;
/// A bound against damage. A guess: far more ranks than any job has.
constexpr std::int64_t kMaxRanks = 1 << 20;
/// Bounds the memory for the parsed JSON. 64 million values hold 12 million slices.
constexpr std::size_t kMaxValues = 64 * 1024 * 1024;
/// The most bytes of a file's name. A guess: names of Millrace have about 40.
constexpr std::size_t kMaxName = 512;

std::uint64_t ChunkCount(const FileMeta& file) {
  return file.size / file.chunk_bytes + (file.size % file.chunk_bytes != 0);
}

std::string EncodeCrcs(const std::vector<std::uint32_t>& crcs) {
  return Base64Encode(std::as_bytes(std::span(crcs)));  // little-endian, as this machine is
}

Result<std::vector<std::uint32_t>> DecodeCrcs(std::string_view text) {
  auto bytes = MR_TRY(Base64Decode(text));
  if (bytes.size() % 4 != 0) return Fail(Code::kCorrupt, "{} bytes are not a list of checksums", bytes.size());
  std::vector<std::uint32_t> crcs(bytes.size() / 4);
  if (!crcs.empty()) std::memcpy(crcs.data(), bytes.data(), bytes.size());
  return crcs;
}

Status CheckFile(std::string_view name, const FileMeta& file) {
  MR_TRY(CheckConfined(name, "", "the manifest"));
  if (name.size() > kMaxName || name.ends_with('/') || name.find('\\') != name.npos)
    return Fail(Code::kCorrupt, "\"{}\" is not an acceptable name of a file", name);
  if (file.size > kMaxFileBytes) return Fail(Code::kCorrupt, "file {}: impossible size {}", name, file.size);
  if (file.chunk_crc32c.empty() && file.chunk_bytes == 0) return {};
  if (file.chunk_bytes < kLeastChunk || file.chunk_bytes > kMaxChunk)
    return Fail(Code::kCorrupt, "file {}: impossible chunk size {}", name, file.chunk_bytes);
  if (file.chunk_crc32c.size() != ChunkCount(file)) {
    return Fail(Code::kCorrupt, "file {}: {} checksums for {} chunks", name, file.chunk_crc32c.size(),
                ChunkCount(file));
  }
  return {};
}

/// `slices` are all slices of one box with `elements` elements, sorted by `begin`.
Status CheckRuns(const std::string& name, std::uint64_t elements, std::span<const Slice* const> slices) {
  std::uint64_t covered = 0;
  for (const Slice* slice : slices) {
    if (slice->begin != covered || slice->elements == 0) {
      return Fail(Code::kCorrupt, "tensor {}: elements {} to {} are covered {}", name, std::min(slice->begin, covered),
                  std::max(slice->begin, covered), slice->begin > covered ? "by no file" : "twice");
    }
    if (slice->elements > elements - covered) {
      return Fail(Code::kCorrupt, "tensor {}: a slice of {} elements from {} goes beyond its {} elements", name,
                  slice->elements, covered, elements);
    }
    covered += slice->elements;
  }
  if (covered != elements)
    return Fail(Code::kCorrupt, "tensor {}: elements {} to {} are covered by no file", name, covered, elements);
  return {};
}

/// `slices` are all slices of one tensor; sorts them.
Status CheckCoverage(const std::string& name, const TensorMeta& meta, std::vector<const Slice*>& slices) {
  std::sort(slices.begin(), slices.end(),
            [](auto* a, auto* b) { return std::tie(a->box, a->begin) < std::tie(b->box, b->begin); });
  if (slices.empty()) return CheckRuns(name, meta.elements(), slices);
  std::vector<Box> boxes;
  for (std::size_t first = 0, last = 0; first < slices.size(); first = last) {
    const Box& box = slices[first]->box;
    while (last < slices.size() && slices[last]->box == box) ++last;
    if (Status inside = CheckBox(box, meta.shape); !inside)
      return Fail(inside.error().Context(fmt::format("tensor {}", name)));
    const std::string part = box.whole() ? name : fmt::format("{}[{}]", name, ToString(box));
    MR_TRY(CheckRuns(part, ElementsOf(box, meta.shape), std::span(slices).subspan(first, last - first)));
    boxes.push_back(box);
  }
  if (boxes.size() == 1 && boxes[0].whole()) return {};
  if (Status tiled = CheckTiling(meta.shape, std::move(boxes)); !tiled)
    return Fail(tiled.error().Context(fmt::format("tensor {}", name)));
  return {};
}

Result<std::vector<std::uint64_t>> Integers(const Json& json, std::string_view what) {
  std::vector<std::uint64_t> values;
  for (const Json& value : json) {
    if (!value.is_number_unsigned()) return Fail(Code::kCorrupt, "{} is not a list of unsigned integers", what);
    values.push_back(value.get<std::uint64_t>());
  }
  return values;
}

Result<const Json*> Member(const Json& object, std::string_view key, Json::value_t type) {
  const Json* member = JsonFind(object, key);
  if (member == nullptr || member->type() != type)
    return Fail(Code::kCorrupt, "\"{}\" is missing or of the wrong type", key);
  return member;
}

Result<TensorMeta> ParseTensor(const Json& json, const std::string& name) {
  TensorMeta meta;
  meta.dtype = MR_TRY(ParseDType(MR_TRY(JsonString(json, "dtype"))));
  for (const Json& dimension : *MR_TRY(Member(json, "shape", Json::value_t::array))) {
    if (!dimension.is_number_unsigned() || dimension.get<std::uint64_t>() > INT64_MAX)
      return Fail(Code::kCorrupt, "tensor {}: impossible shape {}", name, DumpJson(json["shape"]));
    meta.shape.push_back(dimension.get<std::int64_t>());
  }
  MR_TRY(meta.Check(name));
  return meta;
}

Status ParseFiles(const Json& files, Manifest& into, std::vector<std::string>& names) {
  for (const Json& json : files) {
    std::string name = MR_TRY(JsonString(json, "name"));
    FileMeta file;
    file.size = MR_TRY(JsonUint(json, "size"));
    file.chunk_bytes = MR_TRY(JsonUint(json, "chunk_bytes"));
    file.chunk_crc32c = MR_TRY(DecodeCrcs(MR_TRY(JsonString(json, "crc32c"))));
    if (file.chunk_bytes == 0) return Fail(Code::kCorrupt, "file {} has no checksums", name);
    names.push_back(name);
    if (!into.files.emplace(name, std::move(file)).second) return Fail(Code::kCorrupt, "file {} appears twice", name);
  }
  return {};
}

/// Parses [begin, elements, file, offset], with the box as an optional fifth item: a flat list of first index and
/// length for each dimension.
Result<Slice> ParseSlice(const Json& json, const std::string& tensor, const TensorMeta& meta,
                         const std::vector<std::string>& files) {
  constexpr std::size_t kPlain = 4;
  const bool boxed = json.is_array() && json.size() == kPlain + 1 && json[kPlain].is_array();
  if (!json.is_array() || (json.size() != kPlain && !boxed))
    return Fail(Code::kCorrupt, "a slice of tensor {} is not a list of {} integers", tensor, kPlain);
  Slice slice{.tensor = tensor};
  if (boxed) {
    const auto pairs = MR_TRY(Integers(json[kPlain], "the box of a slice of tensor " + tensor));
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      slice.box.offsets.push_back(pairs[i]);
      slice.box.lengths.push_back(pairs[i + 1]);
    }
    if (pairs.size() % 2 != 0 || pairs.empty()) return Fail(Code::kCorrupt, "tensor {}: impossible box", tensor);
    slice.box = Simplified(std::move(slice.box), meta.shape);
  }
  std::array<std::uint64_t, kPlain> values{};
  for (std::size_t i = 0; i < kPlain; ++i) {
    if (!json[i].is_number_unsigned())
      return Fail(Code::kCorrupt, "a slice of tensor {} is not a list of {} integers", tensor, kPlain);
    values[i] = json[i].get<std::uint64_t>();
  }
  const auto& [begin, elements, file, offset] = values;
  if (file >= files.size()) return Fail(Code::kCorrupt, "tensor {}: there is no file {}", tensor, file);
  slice.begin = begin;
  slice.elements = elements;
  slice.file = files[file];
  slice.offset = offset;
  return slice;
}

Status ParseTensors(const Json& tensors, const std::vector<std::string>& files, Manifest& into) {
  for (const Json& json : tensors) {
    std::string name = MR_TRY(JsonString(json, "name"));
    if (!into.tensors.emplace(name, MR_TRY(ParseTensor(json, name))).second)
      return Fail(Code::kCorrupt, "tensor {} appears twice", name);
    const TensorMeta& meta = into.tensors.at(name);
    for (const Json& slice : *MR_TRY(Member(json, "slices", Json::value_t::array)))
      into.slices.push_back(MR_TRY(ParseSlice(slice, name, meta, files)));
  }
  return {};
}

Result<std::map<std::string, std::string>> Strings(const Json& json) {
  std::map<std::string, std::string> strings;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) return Fail(Code::kCorrupt, "\"{}\" is not a text", key);
    strings.emplace(key, value.get<std::string>());
  }
  return strings;
}

/// Parses the members that version 2 added. Each of them may be missing.
Status ParseHistory(const Json& json, Manifest& into) {
  if (const Json* writer = JsonFind(json, "writer")) {
    Provenance& by = into.written_by;
    by.host = MR_TRY(JsonString(*writer, "host"));
    by.user = MR_TRY(JsonString(*writer, "user"));
    by.program = MR_TRY(JsonString(*writer, "program"));
    by.version = MR_TRY(JsonString(*writer, "version"));
    by.libraries = MR_TRY(Strings(*MR_TRY(Member(*writer, "libraries", Json::value_t::object))));
  }
  if (const Json* run = JsonFind(json, "run")) {
    into.run.id = MR_TRY(JsonString(*run, "id"));
    into.run.attempt = static_cast<int>(MR_TRY(JsonInt(*run, "attempt")));
    for (const Json& id : *MR_TRY(Member(*run, "after", Json::value_t::array))) {
      if (!id.is_string()) return Fail(Code::kCorrupt, "the id of a run is not a text");
      into.run.after.push_back(id.get<std::string>());
    }
  }
  if (const Json* parent = JsonFind(json, "parent")) {
    CheckpointId& id = into.parent.emplace();
    id.step = MR_TRY(JsonUint(*parent, "step"));
    id.attempt = MR_TRY(JsonString(*parent, "attempt"));
  }
  if (JsonFind(json, "metrics") == nullptr) return {};
  for (const auto& [name, value] : MR_TRY(Member(json, "metrics", Json::value_t::object))->items()) {
    if (!value.is_number()) return Fail(Code::kCorrupt, "metric \"{}\" is not a number", name);
    into.metrics.emplace(name, value.get<double>());
  }
  return {};
}

Json BoxJson(const Box& box) {
  Json pairs = Json::array();
  for (std::size_t i = 0; i < box.lengths.size(); ++i) {
    pairs.push_back(box.offsets[i]);
    pairs.push_back(box.lengths[i]);
  }
  return pairs;
}

Result<Manifest> FromJson(const Json& json) {
  if (MR_TRY(JsonString(json, "format")) != kFormat) return Fail(Code::kCorrupt, "not a checkpoint's manifest");
  std::int64_t version = MR_TRY(JsonInt(json, "version"));
  if (version < 1 || version > Manifest::kVersion) {
    return Fail(Code::kUnsupported, "the manifest has version {}, this program reads up to {}: use a newer one",
                version, Manifest::kVersion);
  }
  Manifest manifest;
  manifest.step = MR_TRY(JsonUint(json, "step"));
  std::int64_t ranks = MR_TRY(JsonInt(json, "ranks"));
  if (ranks < 1 || ranks > kMaxRanks) return Fail(Code::kCorrupt, "impossible number of ranks {}", ranks);
  manifest.ranks = static_cast<int>(ranks);
  manifest.attempt = MR_TRY(JsonString(json, "attempt"));
  if (JsonFind(json, "epoch") != nullptr) manifest.epoch = MR_TRY(JsonUint(json, "epoch"));
  manifest.created = MR_TRY(JsonString(json, "created"));
  MR_TRY(ParseHistory(json, manifest));
  std::vector<std::string> names;
  MR_TRY(ParseFiles(*MR_TRY(Member(json, "files", Json::value_t::array)), manifest, names));
  MR_TRY(ParseTensors(*MR_TRY(Member(json, "tensors", Json::value_t::array)), names, manifest));
  if (const Json* meta = JsonFind(json, "meta")) manifest.meta = *meta;
  return manifest;
}

}  // namespace

std::uint64_t CheckpointContents::FileBytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, file] : files) bytes += file.size;
  return bytes;
}

Status Manifest::Check(std::string_view name) const {
  auto check = [this]() -> Status {
    for (const auto& [file_name, file] : files) MR_TRY(CheckFile(file_name, file));
    std::map<std::string_view, std::vector<const Slice*>> slices_of;
    for (const Slice& slice : slices) slices_of[slice.tensor].push_back(&slice);
    for (const auto& [tensor, meta] : tensors) {
      MR_TRY(meta.Check(tensor));
      MR_TRY(CheckCoverage(tensor, meta, slices_of[tensor]));
    }
    for (const Slice& slice : slices) {
      auto tensor = tensors.find(slice.tensor);
      if (tensor == tensors.end()) return Fail(Code::kCorrupt, "slice of an unknown tensor {}", slice.tensor);
      auto file = files.find(slice.file);
      // Coverage holds, so the slice's size cannot overflow.
      std::uint64_t bytes = slice.elements * DTypeBytes(tensor->second.dtype);
      if (file == files.end() || bytes > file->second.size || slice.offset > file->second.size - bytes) {
        return Fail(Code::kCorrupt, "tensor {}: its slice of {} bytes at offset {} does not lie inside file {}",
                    slice.tensor, bytes, slice.offset, slice.file);
      }
    }
    return {};
  };
  Status status = check();
  if (!status) return Fail(status.error().Context(std::string(name)));
  return status;
}

std::string Manifest::Serialize() const {
  Json json{{"format", kFormat}, {"version", kVersion}, {"step", step}, {"attempt", attempt}};
  if (epoch > 0) json["epoch"] = epoch;  // EpochOfManifestHead() looks for it here
  json["created"] = created;
  json["ranks"] = ranks;
  json["writer"] = {{"host", written_by.host},
                    {"user", written_by.user},
                    {"program", written_by.program},
                    {"version", written_by.version},
                    {"libraries", written_by.libraries}};
  if (!run.id.empty()) json["run"] = {{"id", run.id}, {"attempt", run.attempt}, {"after", run.after}};
  if (parent) json["parent"] = {{"step", parent->step}, {"attempt", parent->attempt}};
  if (!metrics.empty()) json["metrics"] = metrics;
  Json& file_list = json["files"] = Json::array();
  std::map<std::string_view, std::size_t> file_index;
  for (const auto& [name, file] : files) {
    file_index.emplace(name, file_index.size());
    file_list.push_back({{"name", name},
                         {"size", file.size},
                         {"chunk_bytes", file.chunk_bytes},
                         {"crc32c", EncodeCrcs(file.chunk_crc32c)}});
  }
  std::vector<const Slice*> sorted;
  for (const Slice& slice : slices) sorted.push_back(&slice);
  std::sort(sorted.begin(), sorted.end(), [](const Slice* a, const Slice* b) {
    return std::tie(a->tensor, a->box, a->begin) < std::tie(b->tensor, b->box, b->begin);
  });
  Json& tensor_list = json["tensors"] = Json::array();
  auto slice = sorted.begin();
  for (const auto& [name, meta] : tensors) {
    Json list = Json::array();
    for (; slice != sorted.end() && (*slice)->tensor == name; ++slice) {
      list.push_back({(*slice)->begin, (*slice)->elements, file_index.at((*slice)->file), (*slice)->offset});
      if (!(*slice)->box.whole()) list.back().push_back(BoxJson((*slice)->box));
    }
    tensor_list.push_back(
        {{"name", name}, {"dtype", DTypeName(meta.dtype)}, {"shape", meta.shape}, {"slices", std::move(list)}});
  }
  json["meta"] = meta;
  std::string text = DumpJson(json);
  text.pop_back();  // the closing brace; the checksum becomes the last member
  std::uint32_t crc = Crc32c(AsBytes(text));
  return fmt::format("{}{}{:08x}{}", text, kCrcMember, crc, kEnd);
}

Result<Manifest> Manifest::ParsePart(std::string_view text, std::string_view name) {
  std::string_view tail = text.size() > kTail ? text.substr(text.size() - kTail) : "";
  if (!tail.starts_with(kCrcMember) || !tail.ends_with(kEnd)) {
    return Fail(Code::kCorrupt, "{} is not a complete manifest: it does not end with its checksum", name);
  }
  std::string_view body = text.substr(0, text.size() - kTail);
  std::string_view stored = tail.substr(kCrcMember.size(), kCrcDigits);
  if (std::string actual = fmt::format("{:08x}", Crc32c(AsBytes(body))); actual != stored) {
    return Fail(Code::kCorrupt, "{}: its CRC-32C is {}, it says {}: damaged after it was written", name, actual,
                stored);
  }
  auto json = ParseJson(text, name, {.bytes = kMaxBytes, .values = kMaxValues});
  if (!json) return Fail(json.error().WithCode(Code::kCorrupt));
  auto manifest = FromJson(*json);
  if (!manifest) {
    Code code = manifest.error().code() == Code::kUnsupported ? Code::kUnsupported : Code::kCorrupt;
    return Fail(manifest.error().WithCode(code).Context(std::string(name)));
  }
  return manifest;
}

Result<Manifest> Manifest::Parse(std::string_view text, std::string_view name) {
  Manifest manifest = MR_TRY(ParsePart(text, name));
  MR_TRY(manifest.Check(name));
  return manifest;
}

}  // namespace millrace::checkpoint
