#include "millrace/vfs/rename/rename_record.h"

#include <algorithm>

#include "millrace/base/files/confine.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/vfs/types/names.h"

namespace millrace::vfs {
namespace {

constexpr std::string_view kJournalFormat = "millrace-rename-2";
constexpr std::string_view kToBucket = "to_bucket";  ///< member: `to` is in this bucket, not in the record's
constexpr int kMaxDepth = 4;  ///< of JSON: a record has three levels, the last one each source's array

std::int64_t Nanos(WallTime time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

WallTime FromNanos(std::int64_t nanos) {
  return WallTime(std::chrono::duration_cast<WallTime::duration>(std::chrono::nanoseconds(nanos)));
}

Result<bool> JsonBool(const Json& json, std::string_view key) {
  const Json* member = JsonFind(json, key);
  if (member == nullptr || !member->is_boolean()) return Fail(Code::kInvalidArgument, "{} must be true or false", key);
  return member->get<bool>();
}

/// Returns the key of a directory that the record names relative to `root`. Errors: kCorrupt if no mount shows it.
Result<std::string> DirectoryKey(const Json& json, std::string_view member, std::string_view what,
                                 const std::string& root) {
  std::string key = root + MR_TRY(JsonString(json, member));
  MR_TRY(CheckConfined(key, root, what));
  if (!key.ends_with('/')) return Fail(Code::kCorrupt, "{}: {} names no directory", what, member);
  const std::string_view path = std::string_view(key).substr(root.size(), key.size() - root.size() - 1);
  if (!std::ranges::all_of(Split(path, '/'), IsShowable)) {
    return Fail(Code::kCorrupt, "{}: {} names a directory that no mount shows", what, member);
  }
  return key;
}

Result<std::string> TargetRoot(const Json& json, std::string_view what, const RenameRoot& root) {
  if (JsonFind(json, kToBucket) == nullptr) return root.key;
  const std::string bucket = MR_TRY(JsonString(json, kToBucket));
  if (!root.other_buckets) {
    return Fail(Code::kUnsupported, "{}: its target is in another bucket; only a mount of all buckets can settle it",
                what);
  }
  MR_TRY(CheckConfined(bucket, "", what));
  if (bucket.find('/') != std::string::npos) return Fail(Code::kCorrupt, "{}: {} is no bucket", what, kToBucket);
  return bucket + "/";
}

Status DecodeSources(const Json& json, std::string_view what, RenameRecord& record) {
  const Json* sources = JsonFind(json, "sources");
  if (sources == nullptr || !sources->is_array()) return Fail(Code::kCorrupt, "{} has no sources", what);
  constexpr std::size_t kMembers = 4;  // name, ETag, time of change, ETag of the copy
  for (const Json& source : *sources) {
    if (!source.is_array() || source.size() != kMembers || !source[0].is_string() || !source[1].is_string() ||
        !source[2].is_number_integer() || !source[3].is_string()) {
      return Fail(Code::kCorrupt, "{} has a source that is none", what);
    }
    const auto& name = source[0].get_ref<const std::string&>();
    // The name is only compared with names of a listing, so any segments may be in it. The marker has an empty name.
    if (!name.empty()) MR_TRY(CheckConfined(record.from + name, record.from, what, NameSegments::kAny));
    record.sources.push_back({.name = name,
                              .etag = source[1].get<std::string>(),
                              .modified = FromNanos(source[2].get<std::int64_t>()),
                              .copy_etag = source[3].get<std::string>()});
  }
  return {};
}

}  // namespace

std::string RenameRecordPrefix(const RenameRoot& root) { return fmt::format("{}{}/renames/", root.key, kHiddenName); }
std::string RenameRecordKey(const RenameRoot& root, std::string_view id) { return RenameRecordPrefix(root).append(id); }

std::string EncodeRename(const RenameRecord& record, const RenameRoot& root) {
  Json json = {{"format", kJournalFormat},
               {"id", record.id},
               {"owner", record.owner},
               {"lease", record.lease},
               {"beat", record.beat},
               {"from", record.from.substr(root.key.size())},
               {"replaced_empty", record.replaced_empty},
               {"committed", record.committed}};
  std::string_view to = record.to;
  if (to.starts_with(root.key)) {
    to.remove_prefix(root.key.size());
  } else {
    const std::size_t slash = to.find('/');
    json[std::string(kToBucket)] = to.substr(0, slash);
    to.remove_prefix(slash + 1);
  }
  json["to"] = to;
  Json sources = Json::array();
  for (const auto& source : record.sources) {
    sources.push_back(Json::array({source.name, source.etag, Nanos(source.modified), source.copy_etag}));
  }
  json["sources"] = std::move(sources);
  return DumpJson(json);
}

Result<RenameRecord> DecodeRename(std::string_view text, std::string_view what, const RenameRoot& root) {
  Json json = MR_TRY(ParseJson(text, what, {.depth = kMaxDepth}));
  if (MR_TRY(JsonString(json, "format")) != kJournalFormat) {
    return Fail(Code::kUnsupported, "{} is not of the format {}", what, kJournalFormat);
  }
  RenameRecord record;
  record.id = MR_TRY(JsonString(json, "id"));
  record.owner = MR_TRY(JsonString(json, "owner"));
  record.lease = MR_TRY(JsonString(json, "lease"));
  record.beat = MR_TRY(JsonUint(json, "beat"));
  record.from = MR_TRY(DirectoryKey(json, "from", what, root.key));
  record.to = MR_TRY(DirectoryKey(json, "to", what, MR_TRY(TargetRoot(json, what, root))));
  record.replaced_empty = MR_TRY(JsonBool(json, "replaced_empty"));
  record.committed = MR_TRY(JsonBool(json, "committed"));
  if (record.id.empty() || record.to.starts_with(record.from) || record.from.starts_with(record.to)) {
    return Fail(Code::kCorrupt, "{} names no two directories", what);
  }
  MR_TRY(DecodeSources(json, what, record));
  return record;
}

}  // namespace millrace::vfs
