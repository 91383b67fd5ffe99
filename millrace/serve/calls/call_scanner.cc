#include "millrace/serve/calls/call_scanner.h"

#include <algorithm>
#include <utility>

#include "millrace/base/json.h"

namespace millrace::serve {
namespace {

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/// Returns the name in what stands in front of the arguments.
std::string_view NameIn(std::string_view header) {
  const auto cut_at = [&](std::string_view mark) {
    header = header.substr(0, std::min(header.find(mark), header.size()));
  };
  constexpr std::string_view kSeparator = "<｜tool▁sep｜>", kType = "function";
  // The oldest syntax has the type of the tool first.
  if (header.starts_with(kType) && header.substr(kType.size()).starts_with(kSeparator)) {
    header.remove_prefix(kType.size() + kSeparator.size());
  }
  for (const std::string_view mark : {kSeparator, std::string_view("[CALL_ID]"), std::string_view("[ARGS]"),
                                      std::string_view(">"), std::string_view("\n"), std::string_view("```")}) {
    cut_at(mark);
  }
  while (!header.empty() && IsSpace(header.back())) header.remove_suffix(1);
  return header;
}

bool NamesArguments(std::string_view key) { return key == "arguments" || key == "parameters"; }

}  // namespace

std::size_t ToolCallScanner::Add(std::string_view text) {
  std::size_t taken = 0;
  while (taken < text.size() && !done() && !failed()) Byte(text[taken++]);
  return taken;
}

std::string ToolCallScanner::TakeArguments() {
  if (!has_name_) return {};
  return std::exchange(arguments_, {});
}

void ToolCallScanner::Byte(char c) {
  switch (state_) {
    case State::kHeader:
      InHeader(c);
      return;
    case State::kInValue:
      if (InValue(c)) {
        if (is_only_value_ && depth_ == 0) state_ = State::kDone;
        return;
      }
      EndValue();
      if (!failed()) Byte(c);
      return;
    case State::kInKey:
      if (!escaped_ && c == '"') {
        state_ = State::kColon;
        return;
      }
      escaped_ = !escaped_ && c == '\\';
      key_ += c;
      return;
    default:
      break;
  }
  if (IsSpace(c)) return;
  if (state_ == State::kOpen && c == '{') {
    state_ = State::kKey;
  } else if (state_ == State::kKey && c == '"') {
    key_.clear();
    escaped_ = false;
    state_ = State::kInKey;
  } else if (state_ == State::kColon && c == ':') {
    state_ = State::kValue;
  } else if (state_ == State::kValue) {
    BeginValue(c);
  } else if (state_ == State::kNext && c == ',') {
    state_ = State::kKey;
  } else if (c == '}' && (state_ == State::kNext || (state_ == State::kKey && !has_members_))) {
    // A call needs a name. One without arguments gets none.
    state_ = has_name_ ? State::kDone : State::kFailed;
  } else {
    state_ = State::kFailed;
  }
}

void ToolCallScanner::InHeader(char c) {
  constexpr std::size_t kMaxHeader = 512;  // a name and its marks
  if (c != '{') {
    const bool leads = name_.empty() && IsSpace(c);
    if (!leads) name_ += c;
    if (name_.size() > kMaxHeader) state_ = State::kFailed;
    return;
  }
  name_ = NameIn(name_);
  has_name_ = !name_.empty();
  if (!has_name_) {
    state_ = State::kFailed;
    return;
  }
  is_only_value_ = true;
  key_ = "arguments";
  BeginValue(c);
}

void ToolCallScanner::BeginValue(char c) {
  has_members_ = true;
  value_.clear();
  depth_ = 0;
  in_string_ = escaped_ = false;
  is_scalar_ = c != '{' && c != '[' && c != '"';
  if (c == '}' || c == ']' || c == ',' || c == ':' || (NamesArguments(key_) && has_arguments_)) {
    state_ = State::kFailed;
    return;
  }
  state_ = State::kInValue;
  InValue(c);
}

bool ToolCallScanner::InValue(char c) {
  const bool has_begun = !value_.empty();
  if (has_begun && depth_ == 0 && !in_string_) {
    // The value is complete, or a number or a word that ends here.
    if (!is_scalar_ || c == ',' || c == '}' || c == ']' || IsSpace(c)) return false;
  }
  value_ += c;
  // An object is told as it comes, anything else when it is complete.
  if (NamesArguments(key_) && value_.front() == '{') {
    arguments_ += c;
    has_arguments_ = true;
  }
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
    }
  } else if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if (c == '}' || c == ']') {
    --depth_;
  }
  return true;
}

void ToolCallScanner::EndValue() {
  state_ = State::kNext;
  if (key_ == "name") {
    const auto name = ParseJson(value_, "a name");
    has_name_ = name && name->is_string();
    if (has_name_) name_ = name->get<std::string>();
    if (!has_name_) state_ = State::kFailed;
  } else if (NamesArguments(key_) && value_.front() != '{' && value_ != "null" && value_ != R"("")") {
    // The arguments are the text of JSON.
    const auto text = ParseJson(value_, "arguments");
    const auto object = text && text->is_string() ? ParseJson(text->get_ref<const std::string&>(), "arguments") : text;
    if (!object || !object->is_object()) {
      state_ = State::kFailed;
      return;
    }
    arguments_ += text->get_ref<const std::string&>();
    has_arguments_ = true;
  }
}

}  // namespace millrace::serve
