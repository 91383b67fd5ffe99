#include "millrace/vfs/staging/staged_record.h"

#include "millrace/base/files/confine.h"
#include "millrace/base/hash/crc.h"
#include "millrace/base/json.h"

namespace millrace::vfs {
namespace {

constexpr std::uint64_t kRecordFormat = 1;      ///< docs/formats/staging.md
constexpr std::uint64_t kMaxSize = 1ULL << 60;  ///< far beyond any object; sums of sizes stay below 2^64

Json ToJson(const IntervalSet& set) {
  Json list = Json::array();
  for (const Interval& interval : set.All()) list.push_back({interval.begin, interval.end});
  return list;
}

Result<IntervalSet> ToIntervals(const Json& object, std::string_view name) {
  const Json* list = JsonFind(object, name);
  if (list == nullptr || !list->is_array()) return Fail(Code::kCorrupt, "the record has no \"{}\"", name);
  IntervalSet set;
  for (const Json& pair : *list) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_unsigned() || !pair[1].is_number_unsigned()) {
      return Fail(Code::kCorrupt, "\"{}\" holds something else than pairs of offsets", name);
    }
    const auto begin = pair[0].get<std::uint64_t>(), end = pair[1].get<std::uint64_t>();
    if (begin >= end || end > kMaxSize) return Fail(Code::kCorrupt, "\"{}\" holds an impossible range", name);
    set.Add(begin, end);
  }
  return set;
}

Result<std::map<std::string, std::string>> ToMetadata(const Json& object) {
  std::map<std::string, std::string> metadata;
  for (const auto& [name, value] : object.items()) {
    if (!value.is_string()) return Fail(Code::kCorrupt, "the record's metadata holds something else than text");
    metadata[name] = value.get<std::string>();
  }
  return metadata;
}

Status DecodeUpload(const Json& upload, StagedRecord& record) {
  record.upload_id = MR_TRY(JsonString(upload, "id"));
  record.upload_key = MR_TRY(JsonString(upload, "key"));
  record.upload_begun = WallTime(std::chrono::nanoseconds(MR_TRY(JsonInt(upload, "begun"))));
  return {};
}

Result<StagedRecord> DecodeBody(const Json& body) {
  StagedRecord record;
  record.key = MR_TRY(JsonString(body, "key"));
  record.size = MR_TRY(JsonUint(body, "size"));
  record.modified = WallTime(std::chrono::nanoseconds(MR_TRY(JsonInt(body, "modified"))));
  if (JsonFind(body, "saved") != nullptr) {
    record.saved = WallTime(std::chrono::nanoseconds(MR_TRY(JsonInt(body, "saved"))));
  }
  const std::string state = MR_TRY(JsonString(body, "state"));
  record.complete = state == "complete";
  if (!record.complete && state != "writing") return Fail(Code::kCorrupt, "the record's state is \"{}\"", state);
  const Json* exclusive = JsonFind(body, "exclusive");
  record.exclusive = exclusive != nullptr && exclusive->is_boolean() && exclusive->get<bool>();
  if (JsonFind(body, "removing") != nullptr) record.removing = MR_TRY(JsonString(body, "removing"));
  if (const Json* base = JsonFind(body, "base"); base != nullptr) {
    cache::ObjectVersion& version = record.base.emplace();
    version.key = MR_TRY(JsonString(*base, "key"));
    version.etag = MR_TRY(JsonString(*base, "etag"));
    version.size = MR_TRY(JsonUint(*base, "size"));
    record.base_bytes = MR_TRY(JsonUint(*base, "bytes"));
    if (record.base_bytes > record.base->size)
      return Fail(Code::kCorrupt, "the record uses more of its base than there is");
  }
  if (const Json* metadata = JsonFind(body, "metadata"); metadata != nullptr) {
    record.metadata = MR_TRY(ToMetadata(*metadata));
  }
  record.content_type = MR_TRY(JsonString(body, "content_type"));
  record.held = MR_TRY(ToIntervals(body, "held"));
  record.changed = MR_TRY(ToIntervals(body, "changed"));
  if (const Json* upload = JsonFind(body, "upload"); upload != nullptr) MR_TRY(DecodeUpload(*upload, record));
  if (JsonFind(body, "expected") != nullptr) record.expected = MR_TRY(JsonString(body, "expected"));
  if (record.size > kMaxSize) return Fail(Code::kCorrupt, "the record's size is impossible");
  return record;
}

}  // namespace

std::string EncodeRecord(const StagedRecord& record, std::string_view target) {
  Json body = {{"target", target},
               {"key", record.key},
               {"state", record.complete ? "complete" : "writing"},
               {"size", record.size},
               {"modified", std::chrono::nanoseconds(record.modified.time_since_epoch()).count()},
               {"saved", std::chrono::nanoseconds(record.saved.time_since_epoch()).count()},
               {"exclusive", record.exclusive},
               {"content_type", record.content_type},
               {"held", ToJson(record.held)},
               {"changed", ToJson(record.changed)}};
  if (record.base) {
    body["base"] = {{"key", record.base->key},
                    {"etag", record.base->etag},
                    {"size", record.base->size},
                    {"bytes", record.base_bytes}};
  }
  if (record.removing) body["removing"] = *record.removing;
  if (!record.expected.empty()) body["expected"] = record.expected;
  if (record.metadata) {
    body["metadata"] = Json::object();
    for (const auto& [name, value] : *record.metadata) body["metadata"][name] = value;
  }
  if (!record.upload_key.empty()) {
    body["upload"] = {{"id", record.upload_id},
                      {"key", record.upload_key},
                      {"begun", std::chrono::nanoseconds(record.upload_begun.time_since_epoch()).count()}};
  }
  const std::string text = DumpJson(body);
  const Json header = {{"format", kRecordFormat}, {"crc32c", Crc32c(AsBytes(text))}};
  return DumpJson(header) + "\n" + text + "\n";
}

Result<DecodedRecord> DecodeRecord(std::string_view text, std::string_view what) {
  const std::size_t line = text.find('\n');
  if (line == std::string_view::npos || line + 1 == text.size() || !text.ends_with('\n'))
    return Fail(Code::kCorrupt, "{} is cut short", what);
  auto header = ParseJson(text.substr(0, line), what);
  if (!header) return Fail(header.error().WithCode(Code::kCorrupt));
  if (auto format = JsonUint(*header, "format"); !format || *format != kRecordFormat) {
    return Fail(Code::kUnsupported, "{} is of a format that this version does not know", what);
  }
  std::string_view body = text.substr(line + 1);
  body.remove_suffix(1);
  if (auto crc = JsonUint(*header, "crc32c"); !crc || *crc != Crc32c(AsBytes(body))) {
    return Fail(Code::kCorrupt, "{} is damaged: its checksum does not hold", what);
  }
  auto decoded = [&]() -> Result<DecodedRecord> {
    const Json parsed = MR_TRY(ParseJson(body, what));
    DecodedRecord record;
    record.target = MR_TRY(JsonString(parsed, "target"));
    record.record = MR_TRY(DecodeBody(parsed));
    return record;
  }();
  if (!decoded) return Fail(decoded.error().Context(std::string(what)).WithCode(Code::kCorrupt));
  return decoded;
}

Status CheckKeys(const StagedRecord& record, const std::string& prefix, std::string_view what) {
  // The rename of a directory also copies keys that no mount shows, so an upload may have such a key.
  MR_TRY(CheckConfined(record.key, prefix, what, record.complete ? NameSegments::kPlain : NameSegments::kAny));
  if (record.base) MR_TRY(CheckConfined(record.base->key, prefix, what));
  if (!record.upload_key.empty()) MR_TRY(CheckConfined(record.upload_key, prefix, what, NameSegments::kAny));
  return {};
}

}  // namespace millrace::vfs
