#include "millrace/serve/calls/call_reader.h"

#include <algorithm>
#include <array>

#include "millrace/base/hash/random.h"

namespace millrace::serve {
namespace {

constexpr std::string_view kSpaces = " \n\t\r";
constexpr std::string_view kHermesMark = "<tool_call>", kHermesEnd = "</tool_call>", kMistralMark = "[TOOL_CALLS]",
                           kLlamaMark = "<|python_tag|>", kDeepSeekMark = "<｜tool▁call▁begin｜>", kCodeEnd = "```",
                           kTagMark = "<function=", kTagEnd = "</function>";
// They frame lists of calls of DeepSeek, and end each call.
constexpr std::array<std::string_view, 3> kDeepSeekFrames = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
                                                             "<｜tool▁call▁end｜>"};

std::size_t FirstWord(std::string_view text) { return std::min(text.find_first_not_of(kSpaces), text.size()); }

/// Returns whether `text` is the beginning of `whole`, but not all of it.
bool Begins(std::string_view text, std::string_view whole) {
  return text.size() < whole.size() && whole.starts_with(text);
}

/// Returns the length of the longest end of `text` that begins `mark`.
std::size_t TailOf(std::string_view text, std::string_view mark) {
  for (std::size_t size = std::min(text.size(), mark.size() - 1); size > 0; --size) {
    if (mark.starts_with(text.substr(text.size() - size))) return size;
  }
  return 0;
}

enum class Verdict : std::uint8_t { kYes, kNo, kPerhaps };

/// Returns whether the object at the beginning of `text` is a call: its first member is one of a call's.
Verdict IsCall(std::string_view text) {
  constexpr std::array<std::string_view, 5> kKeys = {R"("name")", R"("type")", R"("function")", R"("arguments")",
                                                     R"("parameters")"};
  if (text.empty()) return Verdict::kPerhaps;
  if (text.front() != '{') return Verdict::kNo;
  text.remove_prefix(1);
  text.remove_prefix(FirstWord(text));
  for (const std::string_view key : kKeys) {
    if (text.starts_with(key)) return Verdict::kYes;
    if (Begins(text, key)) return Verdict::kPerhaps;
  }
  return Verdict::kNo;
}

/// Mistral's templates want ids of nine letters and digits.
std::string NewCallId(ToolSyntax syntax) {
  constexpr std::size_t kMistralDigits = 9;
  if (syntax == ToolSyntax::kMistral || syntax == ToolSyntax::kMistralNamed)
    return SecureHex(5).substr(0, kMistralDigits);
  return "call_" + SecureHex(12);
}

std::string_view MarkOf(ToolSyntax syntax) {
  switch (syntax) {
    case ToolSyntax::kHermes:
      return kHermesMark;
    case ToolSyntax::kMistral:
    case ToolSyntax::kMistralNamed:
      return kMistralMark;
    case ToolSyntax::kDeepSeek:
      return kDeepSeekMark;
    case ToolSyntax::kFunctionTag:
      return kTagMark;
    case ToolSyntax::kUnknown:
    case ToolSyntax::kLlama3:
      return "";
  }
  return "";
}

std::string_view EndMarkOf(ToolSyntax syntax) {
  switch (syntax) {
    case ToolSyntax::kHermes:
      return kHermesEnd;
    case ToolSyntax::kDeepSeek:
      return kCodeEnd;
    case ToolSyntax::kFunctionTag:
      return kTagEnd;
    default:
      return "";
  }
}

}  // namespace

ToolCallParser::ToolCallParser(ToolSyntax syntax, std::vector<std::string> names, bool is_call)
    : syntax_(syntax),
      names_(std::move(names)),
      is_call_(is_call),
      mark_(is_call ? "" : MarkOf(syntax)),
      end_mark_(is_call ? "" : EndMarkOf(syntax)) {
  // Tokenizers drop the special tokens that begin a call of Llama and Mistral.
  if (is_call || syntax == ToolSyntax::kLlama3 || syntax == ToolSyntax::kMistral) state_ = State::kStart;
}

std::vector<std::string_view> ToolCallParser::marks() const {
  if (is_call_) return {};
  switch (syntax_) {
    case ToolSyntax::kMistral:
      return {kMistralMark};
    case ToolSyntax::kMistralNamed:
      return {kMistralMark, "[CALL_ID]", "[ARGS]"};
    case ToolSyntax::kDeepSeek:
      return {kDeepSeekMark, "<｜tool▁sep｜>"};
    default:
      return {};
  }
}

void ToolCallParser::Arrive(std::string_view text, bool is_end) {
  if (syntax_ != ToolSyntax::kDeepSeek || is_call_) {
    pending_ += text;
    return;
  }
  arriving_ += text;
  std::size_t held = 0;
  for (const std::string_view frame : kDeepSeekFrames) {
    for (std::size_t at = arriving_.find(frame); at != std::string::npos; at = arriving_.find(frame, at)) {
      arriving_.erase(at, frame.size());
    }
    held = std::max(held, TailOf(arriving_, frame));
  }
  if (is_end) held = 0;
  pending_.append(arriving_, 0, arriving_.size() - held);
  arriving_.erase(0, arriving_.size() - held);
}

AnswerParts ToolCallParser::Add(std::string_view text) {
  Arrive(text, false);
  AnswerParts parts;
  while (Step(parts)) {
  }
  return parts;
}

AnswerParts ToolCallParser::Finish() {
  AnswerParts parts;
  Arrive("", true);
  while (Step(parts)) {
  }
  const bool after_call = state_ == State::kBetween && raw_.empty();
  EmitRaw(parts);
  const std::string_view rest = std::string_view(pending_).substr(FirstWord(pending_));
  const bool is_rest_of_call = after_call && (Begins(rest, end_mark_) || rest == "]");
  const bool is_space = rest.empty() && begun_ > 0 && !emitted_text_;
  if (!is_rest_of_call && !is_space) EmitText(pending_.size(), parts);
  pending_.clear();
  return parts;
}

bool ToolCallParser::Step(AnswerParts& parts) {
  if (pending_.empty()) return false;
  switch (state_) {
    case State::kStart:
      return AtStart();
    case State::kText:
      return InText(parts);
    case State::kBetween:
      return Between(parts);
    case State::kCall:
      return InCall(parts);
  }
  return false;
}

void ToolCallParser::EmitText(std::size_t size, AnswerParts& parts) {
  if (size == 0) return;
  parts.text.append(pending_, 0, size);
  pending_.erase(0, size);
  emitted_text_ = emitted_text_ || parts.text.find_first_not_of(kSpaces) != std::string::npos;
}

void ToolCallParser::EmitRaw(AnswerParts& parts) {
  if (raw_.empty()) return;
  parts.text += raw_;
  raw_.clear();
  emitted_text_ = true;
}

bool ToolCallParser::AtStart() {
  std::string_view rest = std::string_view(pending_).substr(FirstWord(pending_));
  if (syntax_ == ToolSyntax::kLlama3 && !is_call_) {
    if (Begins(rest, kLlamaMark)) return false;
    has_mark_ = rest.starts_with(kLlamaMark);
    if (has_mark_) rest.remove_prefix(kLlamaMark.size());
    rest.remove_prefix(FirstWord(rest));
  }
  if (syntax_ == ToolSyntax::kMistral && !is_call_) {
    if (rest.empty()) return false;
    if (rest.front() != '[' || rest.starts_with(kMistralMark)) {
      state_ = State::kText;
      return true;
    }
    if (Begins(rest, kMistralMark) && rest.size() > 1) return false;
    rest.remove_prefix(1);
    rest.remove_prefix(FirstWord(rest));
  }
  const Verdict verdict = IsCall(rest);
  if (verdict == Verdict::kPerhaps) return false;
  if (verdict == Verdict::kNo) {
    state_ = State::kText;
    return true;
  }
  raw_ = pending_.substr(0, pending_.size() - rest.size());
  pending_.erase(0, raw_.size());
  BeginCall();
  return true;
}

bool ToolCallParser::InText(AnswerParts& parts) {
  const std::size_t mark = mark_.empty() ? std::string::npos : pending_.find(mark_);
  if (mark == std::string::npos) {
    const std::size_t held = mark_.empty() ? 0 : TailOf(pending_, mark_);
    const std::size_t ready = pending_.size() - held;
    // White space alone, before a call or between two of them, is no content.
    if (FirstWord(std::string_view(pending_).substr(0, ready)) == ready && !emitted_text_) return false;
    EmitText(ready, parts);
    return false;
  }
  // The white space is text if no call follows.
  const bool is_space = FirstWord(std::string_view(pending_).substr(0, mark)) == mark && !emitted_text_;
  if (!is_space) EmitText(mark, parts);
  const std::size_t size = mark_.size() + (is_space ? mark : 0);
  raw_ = pending_.substr(0, size);
  pending_.erase(0, size);
  has_mark_ = true;
  state_ = State::kBetween;
  return true;
}

bool ToolCallParser::Between(AnswerParts& parts) {
  std::size_t begin = FirstWord(pending_);
  const bool is_list = syntax_ == ToolSyntax::kMistral && !is_call_;
  const std::string_view separators = is_list ? "[," : syntax_ == ToolSyntax::kLlama3 && begun_ > 0 ? ";" : "";
  while (begin < pending_.size() && separators.find(pending_[begin]) != std::string_view::npos) {
    begin += 1 + FirstWord(std::string_view(pending_).substr(begin + 1));
  }
  const std::string_view rest = std::string_view(pending_).substr(begin);
  if (rest.empty()) return false;
  const bool after_call = raw_.empty();
  if (after_call && (!end_mark_.empty() || NamesFirst(syntax_))) {
    if (Begins(rest, end_mark_)) return false;
    if (!end_mark_.empty() && rest.starts_with(end_mark_)) pending_.erase(0, begin + end_mark_.size());
    state_ = State::kText;
    return true;
  }
  const Verdict verdict = NamesFirst(syntax_) && !is_call_ ? Verdict::kYes : IsCall(rest);
  if (verdict == Verdict::kPerhaps) return false;
  if (verdict == Verdict::kYes) {
    raw_.append(pending_, 0, begin);
    pending_.erase(0, begin);
    BeginCall();
    return true;
  }
  if (after_call && is_list && rest.front() == ']') {
    pending_.erase(0, begin + 1);
  } else {
    EmitRaw(parts);  // no call follows: the mark is text
  }
  state_ = State::kText;
  return true;
}

void ToolCallParser::BeginCall() {
  scanner_.emplace(NamesFirst(syntax_) && !is_call_);
  emitted_call_ = emitted_arguments_ = false;
  state_ = State::kCall;
}

bool ToolCallParser::IsNoCall() const {
  if (scanner_->failed()) return true;
  if (scanner_->has_name() && std::ranges::find(names_, scanner_->name()) == names_.end()) return true;
  return scanner_->done() && !has_mark_ && !scanner_->has_arguments();
}

void ToolCallParser::EmitCall(AnswerParts& parts) {
  std::string arguments = scanner_->TakeArguments();
  if (arguments.empty() && scanner_->done() && !emitted_arguments_) arguments = "{}";
  if (arguments.empty()) return;
  if (!emitted_call_) {
    emitted_call_ = true;
    raw_.clear();
    parts.calls.push_back({.index = begun_++, .id = NewCallId(syntax_), .name = scanner_->name()});
  }
  emitted_arguments_ = true;
  // One part for all that a piece of text has of a call's arguments.
  if (parts.calls.empty() || !parts.calls.back().id.empty()) parts.calls.push_back({.index = begun_ - 1});
  parts.calls.back().arguments += arguments;
}

bool ToolCallParser::InCall(AnswerParts& parts) {
  // Byte by byte, so that what was told does not depend on what a piece has behind it.
  for (std::size_t taken = 0; taken < pending_.size(); ++taken) {
    if (!emitted_call_) raw_ += pending_[taken];
    scanner_->Add(std::string_view(pending_).substr(taken, 1));
    const bool is_none = IsNoCall();
    if (!is_none) EmitCall(parts);
    if (!is_none && !scanner_->done()) continue;
    pending_.erase(0, taken + 1);
    if (is_none) {
      // What was told of it stays a call; otherwise it is text.
      EmitRaw(parts);
      state_ = State::kText;
      return true;
    }
    ++complete_;
    emitted_text_ = false;
    state_ = State::kBetween;
    return true;
  }
  pending_.clear();
  return false;
}

}  // namespace millrace::serve
