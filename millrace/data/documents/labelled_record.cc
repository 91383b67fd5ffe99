#include "millrace/data/documents/labelled_record.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "millrace/data/records/json_record.h"

namespace millrace::data {

struct LabelledRecordParser::Rep {
  using Failure = std::optional<BrokenReason>;

  /// Replaces `value` by the text of a field.
  static Failure Read(const simdjson::dom::object& object, const std::string& field, std::string& value) {
    value.clear();
    simdjson::dom::element element;
    if (!FindLast(object, field, element)) return BrokenReason::kMissingField;
    if (!AppendPythonText(element, value)) return BrokenReason::kNotText;
    return {};
  }

  std::expected<std::int32_t, BrokenReason> ClassOf(std::string_view label) const {
    if (!options.classes.empty()) {
      auto named = std::ranges::find(options.classes, label);
      if (named == options.classes.end()) return std::unexpected(BrokenReason::kNotClass);
      return static_cast<std::int32_t>(named - options.classes.begin());
    }
    std::int32_t number = -1;
    auto [end, error] = std::from_chars(label.data(), label.data() + label.size(), number);
    if (error != std::errc() || end != label.data() + label.size() || number < 0 || number > kMaxClass) {
      return std::unexpected(BrokenReason::kNotClass);
    }
    return number;
  }

  const ClassificationOptions& options;
  JsonRecordParser json;
  std::string text, pair, label;
};

LabelledRecordParser::LabelledRecordParser(const ClassificationOptions& options) : rep_(new Rep{options}) {}
LabelledRecordParser::~LabelledRecordParser() = default;

std::expected<LabelledRecord, BrokenReason> LabelledRecordParser::Parse(std::string_view record) {
  auto parsed = rep_->json.Parse(record);
  if (!parsed) return std::unexpected(parsed.error());
  const ClassificationOptions& options = rep_->options;
  if (auto failed = Rep::Read(*parsed, options.text, rep_->text)) return std::unexpected(*failed);
  if (!options.pair.empty()) {
    if (auto failed = Rep::Read(*parsed, options.pair, rep_->pair)) return std::unexpected(*failed);
  }
  if (auto failed = Rep::Read(*parsed, options.label, rep_->label)) return std::unexpected(*failed);
  if (rep_->text.empty() && rep_->pair.empty()) return std::unexpected(BrokenReason::kEmpty);
  auto number = rep_->ClassOf(rep_->label);
  if (!number) return std::unexpected(number.error());
  return LabelledRecord{rep_->text, rep_->pair, *number};
}

}  // namespace millrace::data
