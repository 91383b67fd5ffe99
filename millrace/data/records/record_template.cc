#include "millrace/data/records/record_template.h"

#include <array>

#include "millrace/data/records/json_record.h"

namespace millrace::data {
namespace {

constexpr std::array<std::string_view, kBrokenKinds> kNames = {"not_json", "not_utf8", "missing_field", "not_text",
                                                               "empty",    "too_long", "not_chat"};

constexpr std::size_t kMaxTemplateBytes = 64 * kKiB;

}  // namespace

std::string_view BrokenName(Broken reason) { return kNames[static_cast<std::size_t>(reason)]; }

Result<Broken> ParseBroken(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Broken>(i);
  }
  return Fail(Code::kInvalidArgument, "no reason for a broken record is called \"{}\"", name);
}

bool IsBlank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == line.npos; }

Result<RecordTemplate> RecordTemplate::Parse(std::string_view text) {
  if (text.size() > kMaxTemplateBytes) {
    return Fail(Code::kInvalidArgument, "template: {} bytes are more than the {} allowed", text.size(),
                kMaxTemplateBytes);
  }
  RecordTemplate parsed;
  parsed.text_ = text;
  parsed.literals_.emplace_back();
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c != '{' && c != '}') {
      parsed.literals_.back() += c;
    } else if (text.substr(i + 1).starts_with(c)) {
      parsed.literals_.back() += c;
      ++i;
    } else if (c == '}') {
      return Fail(Code::kInvalidArgument, "template: '}}' at column {} closes nothing; write '}}}}' for a brace",
                  i + 1);
    } else {
      std::size_t end = text.find_first_of("{}", i + 1);
      if (end == text.npos || text[end] == '{') {
        return Fail(Code::kInvalidArgument, "template: '{{' at column {} is not closed; write '{{{{' for a brace",
                    i + 1);
      }
      if (end == i + 1) return Fail(Code::kInvalidArgument, "template: no field named at column {}", i + 1);
      parsed.fields_.emplace_back(text.substr(i + 1, end - i - 1));
      parsed.literals_.emplace_back();
      i = end;
    }
  }
  if (parsed.fields_.empty()) {
    return Fail(Code::kInvalidArgument, "template \"{}\" names no field; write {{text}} for the field \"text\"", text);
  }
  return parsed;
}

struct RecordParser::Rep {
  const RecordTemplate& record_template;
  JsonRecordParser json;
  std::string document;
};

RecordParser::RecordParser(const RecordTemplate& record_template) : rep_(new Rep{record_template}) {}
RecordParser::RecordParser(RecordParser&&) noexcept = default;
RecordParser::~RecordParser() = default;

std::expected<std::string_view, Broken> RecordParser::Parse(std::string_view record) {
  auto parsed = rep_->json.Parse(record);
  if (!parsed) return std::unexpected(parsed.error());
  const simdjson::dom::object object = *parsed;

  const RecordTemplate& t = rep_->record_template;
  std::string& document = rep_->document;
  document.assign(t.literals_.front());
  bool any = false;
  for (std::size_t i = 0; i < t.fields_.size(); ++i) {
    simdjson::dom::element field;
    if (!FindLast(object, t.fields_[i], field)) return std::unexpected(Broken::kMissingField);
    const std::size_t before = document.size();
    if (!AppendPythonText(field, document)) return std::unexpected(Broken::kNotText);
    any |= document.size() > before;
    document += t.literals_[i + 1];
    if (document.size() > kMaxDocumentBytes) return std::unexpected(Broken::kTooLong);
  }
  if (!any) return std::unexpected(Broken::kEmpty);
  return document;
}

}  // namespace millrace::data
