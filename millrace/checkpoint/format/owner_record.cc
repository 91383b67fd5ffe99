#include "millrace/checkpoint/format/owner_record.h"

#include <algorithm>
#include <charconv>

#include "millrace/base/json.h"

namespace millrace::checkpoint {
namespace {

constexpr std::string_view kOwnerFormat = "millrace-owner";
constexpr int kOwnerVersion = 1;

/// Whether `epoch` began from an earlier step than `step`.
bool BeganBefore(const OwnerEpoch& epoch, std::uint64_t step) {
  return epoch.has_begun && (!epoch.began_from || *epoch.began_from < step);
}

Json EpochJson(const OwnerEpoch& epoch) {
  Json json{{"epoch", epoch.number}, {"token", epoch.token}, {"run", epoch.run},         {"attempt", epoch.attempt},
            {"host", epoch.host},    {"user", epoch.user},   {"program", epoch.program}, {"since", epoch.since}};
  if (epoch.has_begun) json["began_from"] = epoch.began_from ? Json(*epoch.began_from) : Json(nullptr);
  return json;
}

Result<OwnerEpoch> ParseEpoch(const Json& json) {
  OwnerEpoch epoch;
  epoch.number = MR_TRY(JsonUint(json, "epoch"));
  epoch.token = MR_TRY(JsonString(json, "token"));
  epoch.run = MR_TRY(JsonString(json, "run"));
  epoch.attempt = static_cast<int>(MR_TRY(JsonInt(json, "attempt")));
  epoch.host = MR_TRY(JsonString(json, "host"));
  epoch.user = MR_TRY(JsonString(json, "user"));
  epoch.program = MR_TRY(JsonString(json, "program"));
  epoch.since = MR_TRY(JsonString(json, "since"));
  const Json* from = JsonFind(json, "began_from");
  epoch.has_begun = from != nullptr;
  if (from != nullptr && !from->is_null()) epoch.began_from = MR_TRY(JsonUint(json, "began_from"));
  return epoch;
}

Result<OwnerRecord> OwnerFromJson(const Json& json) {
  if (MR_TRY(JsonString(json, "format")) != kOwnerFormat) return Fail(Code::kCorrupt, "not an owner object");
  const std::int64_t version = MR_TRY(JsonInt(json, "version"));
  if (version < 1 || version > kOwnerVersion) {
    return Fail(Code::kUnsupported, "the owner object has version {}, this program reads up to {}: use a newer one",
                version, kOwnerVersion);
  }
  OwnerRecord record;
  record.renewals = MR_TRY(JsonUint(json, "renewals"));
  const Json *ended = JsonFind(json, "ended"), *epochs = JsonFind(json, "epochs");
  record.has_ended = ended != nullptr && ended->is_boolean() && ended->get<bool>();
  record.process = MR_TRY(JsonString(json, "process"));
  if (epochs == nullptr || !epochs->is_array() || epochs->empty() || epochs->size() > OwnerRecord::kMaxEpochs)
    return Fail(Code::kCorrupt, "the list of 1 to {} epochs is missing", OwnerRecord::kMaxEpochs);
  for (const Json& epoch : *epochs) {
    record.epochs.push_back(MR_TRY(ParseEpoch(epoch)));
    const std::size_t count = record.epochs.size();
    if (count > 1 && record.epochs[count - 2].number >= record.epochs[count - 1].number)
      return Fail(Code::kCorrupt, "the epochs do not ascend");
  }
  if (record.epochs.front().number == 0) return Fail(Code::kCorrupt, "the first epoch is 0, and epochs count from 1");
  return record;
}

}  // namespace

std::string OwnerEpoch::Who() const { return fmt::format("{}@{} ({}, since {})", user, host, program, since); }

bool OwnerRecord::Supersedes(std::uint64_t epoch, std::uint64_t step) const {
  return epoch > 0 && std::ranges::any_of(epochs, [&](const OwnerEpoch& later) {
           return later.number > epoch && BeganBefore(later, step);
         });
}

const OwnerEpoch& OwnerRecord::SupersededBy(std::uint64_t epoch, std::uint64_t step) const {
  return *std::ranges::find_if(
      epochs, [&](const OwnerEpoch& later) { return later.number > epoch && BeganBefore(later, step); });
}

std::optional<std::uint64_t> OwnerRecord::LeastSuperseded() const {
  std::optional<std::uint64_t> least;
  for (const OwnerEpoch& epoch : epochs) {
    if (epoch.number == 1 || !epoch.has_begun) continue;  // before the first epoch there are no manifests with one
    const std::uint64_t first = epoch.began_from ? *epoch.began_from + 1 : 0;
    least = std::min(least.value_or(first), first);
  }
  return least;
}

void OwnerRecord::Add(OwnerEpoch epoch) {
  epochs.push_back(std::move(epoch));
  // An epoch decides nothing if it never began, or if a later one began from the same step or an earlier one.
  const auto decides = [this](std::size_t index) {
    const OwnerEpoch& one = epochs[index];
    return one.has_begun && std::none_of(epochs.begin() + static_cast<std::ptrdiff_t>(index) + 1, epochs.end(),
                                         [&](const OwnerEpoch& later) {
                                           return later.has_begun && (later.began_from ? *later.began_from + 1 : 0) <=
                                                                         (one.began_from ? *one.began_from + 1 : 0);
                                         });
  };
  for (std::size_t i = 0; epochs.size() > kMaxEpochs && i + 1 < epochs.size();) {
    if (decides(i)) {
      ++i;
    } else {
      epochs.erase(epochs.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  while (epochs.size() > kMaxEpochs) epochs.erase(epochs.begin());
}

std::string OwnerRecord::Serialize() const {
  Json list = Json::array();
  for (const OwnerEpoch& epoch : epochs) list.push_back(EpochJson(epoch));
  const Json json{{"format", kOwnerFormat}, {"version", kOwnerVersion}, {"renewals", renewals},
                  {"ended", has_ended},     {"process", process},       {"epochs", std::move(list)}};
  return DumpJson(json) + "\n";
}

Result<OwnerRecord> OwnerRecord::Parse(std::string_view text, std::string_view name) {
  const auto json = ParseJson(text, name, {.bytes = kMaxBytes});
  if (!json) return Fail(json.error().WithCode(Code::kCorrupt));
  auto record = OwnerFromJson(*json);
  if (record) return record;
  const Code code = record.error().code() == Code::kUnsupported ? Code::kUnsupported : Code::kCorrupt;
  return Fail(record.error().WithCode(code).Context(std::string(name)));
}

std::uint64_t EpochOfManifestHead(std::string_view head) {
  // Manifests have a canonical form, in which the members before the epoch hold no text of users.
  constexpr std::string_view kMember = ",\"epoch\":", kAfter = ",\"created\":";
  head = head.substr(0, head.find(kAfter));
  const std::size_t at = head.find(kMember);
  if (at == head.npos) return 0;
  const std::string_view digits = head.substr(at + kMember.size());
  std::uint64_t epoch = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), epoch);
  return error == std::errc() ? epoch : 0;
}

}  // namespace millrace::checkpoint
