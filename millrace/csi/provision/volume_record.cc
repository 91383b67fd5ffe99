#include "millrace/csi/provision/volume_record.h"

#include <algorithm>
#include <array>

#include "millrace/base/json.h"

namespace millrace::csi {
namespace {

constexpr char kMarkFormat[] = "millrace-csi-mark";
constexpr std::uint64_t kVersion = 1;
constexpr std::array<std::string_view, 2> kKinds = {"volume", "snapshot"};
constexpr std::array<std::string_view, 3> kStates = {"copying", "ready", "deleting"};

Result<VolumeRecord> FromJson(const Json& json) {
  const std::string format = MR_TRY(JsonString(json, "format"));
  const std::uint64_t version = MR_TRY(JsonUint(json, "version"));
  if (format != kMarkFormat || version != kVersion) {
    return Fail(Code::kInvalidArgument, "the record's format is {} {}, not {} {}", format, version, kMarkFormat,
                kVersion);
  }
  VolumeRecord mark;
  mark.id = MR_TRY(JsonString(json, "id"));
  mark.driver = MR_TRY(JsonString(json, "driver"));
  mark.name = MR_TRY(JsonString(json, "name"));
  mark.source = MR_TRY(JsonString(json, "source"));
  mark.capacity_bytes = MR_TRY(JsonInt(json, "capacity_bytes"));
  mark.created_unix_seconds = MR_TRY(JsonInt(json, "created"));
  const std::string state = MR_TRY(JsonString(json, "state"));
  const std::string kind = MR_TRY(JsonString(json, "source_kind"));
  if (std::ranges::find(kKinds, kind) == kKinds.end())
    return Fail(Code::kInvalidArgument, "the record's source is a {}", kind);
  mark.source_kind = kind == kKinds[0] ? RootKind::kVolume : RootKind::kSnapshot;
  const auto known = std::ranges::find(kStates, state);
  if (known == kStates.end()) return Fail(Code::kInvalidArgument, "the record's state is {}", state);
  mark.state = static_cast<VolumeState>(known - kStates.begin());
  const Json* parameters = JsonFind(json, "parameters");
  if (parameters == nullptr || !parameters->is_object())
    return Fail(Code::kInvalidArgument, "the record has no parameters");
  for (const auto& [name, value] : parameters->items()) mark.parameters[name] = MR_TRY(JsonString(*parameters, name));
  return mark;
}

}  // namespace

std::string VolumeRecord::ToJson() const {
  Json all = Json::object();
  for (const auto& [parameter, value] : parameters) all[parameter] = value;
  return DumpJsonPretty({{"format", kMarkFormat},
                         {"version", kVersion},
                         {"id", id},
                         {"driver", driver},
                         {"name", name},
                         {"state", kStates.at(static_cast<std::size_t>(state))},
                         {"capacity_bytes", capacity_bytes},
                         {"source", source},
                         {"source_kind", kKinds.at(static_cast<std::size_t>(source_kind))},
                         {"parameters", all},
                         {"created", created_unix_seconds}}) +
         "\n";
}

Result<VolumeRecord> VolumeRecord::Parse(std::string_view text, const std::string& what) {
  auto json = ParseJson(text, what);
  auto mark = json ? FromJson(*json) : Result<VolumeRecord>(Fail(json.error()));
  if (!mark) return Fail(mark.error().Context(what + " is not an ownership mark").WithCode(Code::kCorrupt));
  return mark;
}

}  // namespace millrace::csi
