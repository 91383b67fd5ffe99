#include "millrace/data/documents/field_mismatch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "millrace/data/records/content.h"
#include "millrace/data/records/json_record.h"

namespace millrace::data {
namespace {

constexpr std::uint64_t kSampleBytes = 1 * kMiB;  // holds a record of nearly every data set
constexpr int kMaxRecords = 200;                  // a guess: a header or a few odd records may come first
constexpr std::size_t kMaxNamed = 20;             // fields in a message

/// Returns the first records of the object as lines. The last may be cut.
Result<Buffer> ReadFirst(const DataObject& object, const object::Call& call) {
  if (!object.content) {
    Buffer bytes(std::min(kSampleBytes, object.info.size));
    MR_TRY(ReadRange(object, 0, bytes.span(), "reading", call));
    return bytes;
  }
  std::optional<Frame> first;
  std::optional<Buffer> content;
  const Status searched = object.content->FindFrames(
      [&](Frame frame, std::optional<Buffer> decoded) -> Status {
        first = std::move(frame);
        content = std::move(decoded);
        return Fail(Code::kCancelled, "one frame is enough");
      },
      call);
  if (content) return *std::move(content);
  if (first) return object.content->ReadFrame(*first, call);
  MR_TRY(searched);
  return Buffer();
}

/// Returns the names of the object's members. Those of an object that a field leads into get its name in front.
std::vector<std::string> NamesOf(simdjson::dom::object record, const std::vector<std::string>& fields) {
  std::vector<std::string> names;
  const auto add = [&names](std::string name) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  };
  for (const auto member : record) {
    const std::string name(member.key);
    simdjson::dom::object inner;
    const bool entered = std::ranges::any_of(fields, [&](const std::string& f) { return f.starts_with(name + "."); });
    if (!entered || member.value.get(inner)) {
      add(name);
      continue;
    }
    for (const auto below : inner) add(fmt::format("{}.{}", name, std::string_view(below.key)));
  }
  return names;
}

bool Has(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

std::string FieldMismatch::ToString() const {
  std::vector<std::string> named(present.begin(),
                                 present.begin() + static_cast<std::ptrdiff_t>(std::min(kMaxNamed, present.size())));
  if (named.size() < present.size()) named.emplace_back("…");
  std::string text = fmt::format("the records have no field{} {}; they have {}", missing.size() == 1 ? "" : "s",
                                 fmt::join(missing, ", "), fmt::join(named, ", "));
  const bool chats = Has(present, "messages") || Has(present, "conversations");
  if (chats && !Has(missing, "messages")) text += " (conversations are read by mode: sft with layout: auto or chatml)";
  return text;
}

Result<std::optional<FieldMismatch>> FindFieldMismatch(const DataObject& object, const DocumentForm& form,
                                                       object::Call call) {
  if (object.token_bytes > 0 || (object.content && object.content->holds_samples())) return std::nullopt;
  const Buffer bytes = MR_TRY(ReadFirst(object, call));
  std::string_view rest = AsText(bytes);
  DocumentEncoder encoder(form, nullptr);
  EncodedDocument document;
  std::optional<FieldMismatch> first;
  int usable = 0;
  for (int i = 0; i < kMaxRecords && !rest.empty(); ++i) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest = end == rest.npos ? std::string_view() : rest.substr(end + 1);
    if (IsBlank(line)) continue;
    const auto broken = MR_TRY(encoder.Encode(line, document));
    usable += broken ? 0 : 1;
    if (first || broken != BrokenReason::kMissingField) continue;
    JsonRecordParser parser;
    const auto record = parser.Parse(line);
    // A row of a table with too few or too many fields is an empty record. Only its place says something.
    if (!record || record->size() == 0) continue;
    first.emplace();
    simdjson::dom::element value;
    for (const std::string& field : form.fields()) {
      if (!FindField(*record, field, value)) first->missing.push_back(field);
    }
    first->present = NamesOf(*record, form.fields());
  }
  if (first) first->in_all = usable == 0;
  return first;
}

Result<std::string> FindTemplateRefusal(const DataObject& object, const DocumentForm& form, object::Call call) {
  constexpr int kMaxWritten = 20;  // a guess: a template takes longer than a parser
  if (!form.has_model_template() || object.token_bytes > 0) return "";
  const Buffer bytes = MR_TRY(ReadFirst(object, call));
  DocumentEncoder encoder(form, nullptr);
  EncodedDocument document;
  std::string first;
  std::string_view rest = AsText(bytes);
  for (int i = 0; i < kMaxWritten && !rest.empty(); ++i) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest = end == rest.npos ? std::string_view() : rest.substr(end + 1);
    if (IsBlank(line)) continue;
    const auto broken = MR_TRY(encoder.Encode(line, document));
    if (!broken) return "";
    if (!first.empty() || *broken == BrokenReason::kNotJson) continue;
    first = fmt::format("the first record cannot be written ({})", BrokenReasonName(*broken));
    if (*broken == BrokenReason::kTemplateError) first += ": " + encoder.template_refusal();
  }
  return first;
}

}  // namespace millrace::data
