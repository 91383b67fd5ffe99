#include "millrace/data/records/record_template.h"

#include "millrace/data/records/json_record.h"

namespace millrace::data {
namespace {

constexpr std::size_t kMaxTemplateBytes = 64 * kKiB;  // a guess: far above a prompt that people write

}  // namespace

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
      if (end == i + 1) {
        return Fail(Code::kInvalidArgument, "template: no field named at column {}; write its name between the braces",
                    i + 1);
      }
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
  const bool keeps_empty;
  JsonRecordParser json;
  std::string document;
};

RecordParser::RecordParser(const RecordTemplate& record_template, bool keeps_empty)
    : rep_(new Rep{record_template, keeps_empty}) {}
RecordParser::RecordParser(RecordParser&&) noexcept = default;
RecordParser::~RecordParser() = default;

std::expected<std::string_view, BrokenReason> RecordParser::Parse(std::string_view record) {
  auto parsed = rep_->json.Parse(record);
  if (!parsed) return std::unexpected(parsed.error());
  const simdjson::dom::object object = *parsed;

  const RecordTemplate& t = rep_->record_template;
  std::string& document = rep_->document;
  document.assign(t.literals_.front());
  bool any = false;
  for (std::size_t i = 0; i < t.fields_.size(); ++i) {
    simdjson::dom::element field;
    if (!FindField(object, t.fields_[i], field)) return std::unexpected(BrokenReason::kMissingField);
    const std::size_t before = document.size();
    if (!AppendPythonText(field, document)) return std::unexpected(BrokenReason::kNotText);
    any |= document.size() > before;
    document += t.literals_[i + 1];
    if (document.size() > kMaxDocumentBytes) return std::unexpected(BrokenReason::kTooLong);
  }
  if (any) return document;
  if (rep_->keeps_empty) return "";
  return std::unexpected(BrokenReason::kEmpty);
}

}  // namespace millrace::data
