#include "millrace/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "millrace/jinja/python/text.h"

namespace millrace::jinja {
namespace {

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool BeginsName(char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsInName(char c) { return BeginsName(c) || IsDigit(c); }

/// Line breaks become "\n", and one at the end is dropped.
std::string WithPlainLines(std::string_view source) {
  std::string lines;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      lines += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      lines += '\n';
    }
  }
  if (lines.ends_with('\n')) lines.pop_back();
  return lines;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> Run() {
    while (at_ < source_.size()) {
      const std::size_t tag = FindTag(at_);
      const bool at_end = tag == source_.size();
      std::string_view text = Source().substr(at_, tag - at_);
      if (at_end) {
        Put(Token::Kind::kText, std::string(text));
        break;
      }
      const char kind = source_[tag + 1];
      const std::string_view sign = SignAt(tag + 2);
      if (sign == "-") {
        text = Strip(text, Ends::kRight);
      } else if (sign.empty() && kind != '{') {
        text = WithoutIndent(text);
      }
      if (!text.empty()) Put(Token::Kind::kText, std::string(text));
      line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                           source_.begin() + static_cast<std::ptrdiff_t>(tag), '\n')) -
               static_cast<int>(std::count(text.begin(), text.end(), '\n'));
      at_ = tag + 2 + sign.size();
      MR_TRY(kind == '#' ? SkipComment() : kind == '{' ? ReadTag('}') : ReadStatement());
    }
    Put(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view Source() const { return source_; }
  template <class... Arguments>
  std::unexpected<Error> Wrong(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
    return Fail(Code::kInvalidArgument, "line {}: {}", line_,
                fmt::format(format, std::forward<Arguments>(arguments)...));
  }
  void Put(Token::Kind kind, std::string text) {
    const auto lines = static_cast<int>(std::count(text.begin(), text.end(), '\n'));
    tokens_.push_back({kind, std::move(text), line_});
    if (tokens_.back().kind == Token::Kind::kText) line_ += lines;
  }
  void Advance(std::size_t count) {
    const auto begin = source_.begin() + static_cast<std::ptrdiff_t>(at_);
    line_ += static_cast<int>(std::count(begin, begin + static_cast<std::ptrdiff_t>(count), '\n'));
    at_ += count;
    line_starts_ = count > 0 && source_[at_ - 1] == '\n';
  }

  std::size_t FindTag(std::size_t from) const {
    for (std::size_t at = source_.find('{', from); at != std::string::npos; at = source_.find('{', at + 1)) {
      if (at + 1 < source_.size() && Source().substr(at + 1, 1).find_first_of("{%#") == 0) return at;
    }
    return source_.size();
  }
  std::string_view SignAt(std::size_t at) const {
    const std::string_view sign = Source().substr(std::min(at, source_.size()), 1);
    return sign == "-" || sign == "+" ? sign : std::string_view();
  }
  /// Removes white space that is all there is between the beginning of a line and a tag.
  std::string_view WithoutIndent(std::string_view text) const {
    const std::size_t begin = text.rfind('\n') + 1;  // 0 if there is none
    if (begin == 0 && !line_starts_) return text;
    return Strip(text.substr(begin), Ends::kBoth).empty() ? text.substr(0, begin) : text;
  }
  void SkipSpaces() {
    std::size_t end = at_;
    while (end < source_.size()) {
      const auto [code, length] = CharacterAt(source_, end);
      if (!Strip(Source().substr(end, length), Ends::kBoth).empty()) break;
      end += length;
    }
    if (end > at_) Advance(end - at_);
  }
  /// Takes the end of a tag, such as "-%}", if it is here, and the white space that belongs to it.
  bool TakeEnd(std::string_view end, bool takes_newline) {
    const std::string_view here = Source().substr(at_);
    if (here.starts_with('-') && here.substr(1).starts_with(end)) {
      Advance(1 + end.size());
      SkipSpaces();
      return true;
    }
    if (takes_newline && here.starts_with('+') && here.substr(1).starts_with(end)) {
      Advance(1 + end.size());
      return true;
    }
    if (!here.starts_with(end)) return false;
    const bool newline = takes_newline && here.substr(end.size()).starts_with('\n');
    Advance(end.size() + (newline ? 1 : 0));
    return true;
  }

  Status SkipComment() {
    const int begun = line_;
    while (at_ < source_.size()) {
      if (TakeEnd("#}", true)) return {};
      Advance(1);
    }
    line_ = begun;
    return Wrong("the comment has no end (#}})");
  }

  Status ReadStatement() {
    std::size_t name = at_;
    while (name < source_.size() && IsSpace(source_[name])) ++name;
    if (Source().substr(name).starts_with("raw") && (name + 3 == source_.size() || !IsInName(source_[name + 3]))) {
      return ReadRaw(name + 3);
    }
    return ReadTag('%');
  }

  Status ReadRaw(std::size_t behind_name) {
    Advance(behind_name - at_);
    while (at_ < source_.size() && IsSpace(source_[at_])) Advance(1);
    if (!TakeEnd("%}", false)) return Wrong("{{% raw %}} takes nothing");
    for (std::size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 1)) {
      const std::string_view sign = SignAt(tag + 2);
      std::size_t name = tag + 2 + sign.size();
      while (name < source_.size() && IsSpace(source_[name])) ++name;
      if (!Source().substr(name).starts_with("endraw")) continue;
      std::string_view text = Source().substr(at_, tag - at_);
      if (sign == "-") text = Strip(text, Ends::kRight);
      if (!text.empty()) tokens_.push_back({Token::Kind::kText, std::string(text), line_});
      Advance(name + 6 - at_);
      while (at_ < source_.size() && IsSpace(source_[at_])) Advance(1);
      if (!TakeEnd("%}", true)) return Wrong("{{% endraw %}} takes nothing");
      return {};
    }
    return Wrong("{{% raw %}} has no {{% endraw %}}");
  }

  /// Reads the tokens up to the end of the tag, "}}" or "%}".
  Status ReadTag(char last) {
    const bool output = last == '}';
    const std::string end = {last, '}'};
    Put(output ? Token::Kind::kOutputBegin : Token::Kind::kTagBegin, "");
    const int begun = line_;
    std::string open;  // brackets
    while (at_ < source_.size()) {
      if (open.empty() && TakeEnd(end, !output)) {
        Put(output ? Token::Kind::kOutputEnd : Token::Kind::kTagEnd, "");
        return {};
      }
      const char c = source_[at_];
      if (IsSpace(c)) {
        Advance(1);
      } else if (BeginsName(c)) {
        std::size_t behind = at_;
        while (behind < source_.size() && IsInName(source_[behind])) ++behind;
        Take(Token::Kind::kName, behind - at_);
      } else if (IsDigit(c)) {
        MR_TRY(ReadNumber());
      } else if (c == '\'' || c == '"') {
        MR_TRY(ReadString());
      } else {
        MR_TRY(ReadOperator(open));
      }
    }
    line_ = begun;
    return Wrong("the tag has no end ({})", end);
  }

  void Take(Token::Kind kind, std::size_t length) {
    Put(kind, source_.substr(at_, length));
    Advance(length);
  }

  Status ReadNumber() {
    std::size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && (IsDigit(source_[end]) || source_[end] == '_')) ++end;
    };
    digits();
    Token::Kind kind = Token::Kind::kInteger;
    // "x.1.2" are two subscripts.
    const bool is_subscript = !tokens_.empty() && tokens_.back().Is(Token::Kind::kOperator, ".");
    if (!is_subscript && end + 1 < source_.size() && source_[end] == '.' && IsDigit(source_[end + 1])) {
      kind = Token::Kind::kFloat;
      ++end;
      digits();
    }
    if (!is_subscript && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const std::size_t sign = end + 1 < source_.size() && (source_[end + 1] == '-' || source_[end + 1] == '+') ? 1 : 0;
      if (end + 1 + sign < source_.size() && IsDigit(source_[end + 1 + sign])) {
        kind = Token::Kind::kFloat;
        end += 1 + sign;
        digits();
      }
    }
    if (end < source_.size() && BeginsName(source_[end])) return Wrong("a number runs into a name");
    std::string number = source_.substr(at_, end - at_);
    std::erase(number, '_');
    if (kind == Token::Kind::kInteger && number.size() > 18) return Wrong("the number {} is too large", number);
    Put(kind, std::move(number));
    Advance(end - at_);
    return {};
  }

  Status ReadString() {
    const char quote = source_[at_];
    std::string value;
    for (std::size_t at = at_ + 1; at < source_.size(); ++at) {
      if (source_[at] == quote) {
        Put(Token::Kind::kString, std::move(value));
        Advance(at + 1 - at_);
        return {};
      }
      if (source_[at] != '\\' || at + 1 == source_.size()) {
        value += source_[at];
        continue;
      }
      MR_TRY(ReadEscape(++at, value));
    }
    return Wrong("a string has no end");
  }

  /// Reads what follows a backslash, as Python does. Leaves `at` at its last byte.
  Status ReadEscape(std::size_t& at, std::string& value) const {
    constexpr std::string_view kShort = "\\'\"abfnrtv\n", kMeaning = "\\'\"\a\b\f\n\r\t\v";
    const char c = source_[at];
    if (c == '\n') return {};
    if (const std::size_t place = kShort.find(c); place != std::string_view::npos) {
      value += kMeaning[place];
      return {};
    }
    const auto number = [&](std::size_t begin, std::size_t digits, std::uint32_t base) -> std::optional<std::uint32_t> {
      std::uint32_t code = 0;
      for (std::size_t i = begin; i < begin + digits; ++i) {
        constexpr std::string_view kDigits = "0123456789abcdef0123456789ABCDEF";
        const std::size_t digit = i < source_.size() ? kDigits.find(source_[i]) : std::string_view::npos;
        const std::size_t worth = digit >= 16 && digit != std::string_view::npos ? digit - 16 : digit;
        if (digit == std::string_view::npos || worth >= base) return std::nullopt;
        code = code * base + static_cast<std::uint32_t>(worth);
      }
      return code;
    };
    std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      const auto code = number(at + 1, digits, 16);
      if (!code || *code > 0x10FFFF || (*code >= 0xD800 && *code <= 0xDFFF)) {
        return Wrong("\\{} wants {} hexadecimal digits of a character", c, digits);
      }
      tokenizer::AppendUtf8(*code, value);
      at += digits;
      return {};
    }
    if (c >= '0' && c <= '7') {
      digits = 1;
      while (digits < 3 && number(at, digits + 1, 8)) ++digits;
      tokenizer::AppendUtf8(*number(at, digits, 8), value);
      at += digits - 1;
      return {};
    }
    value += '\\';
    value += c;
    return {};
  }

  Status ReadOperator(std::string& open) {
    constexpr std::array<std::string_view, 6> kLong = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kShort = "+-/*%~[](){}><=.:|,";
    const std::string_view here = Source().substr(at_);
    const char c = here[0];
    for (const std::string_view two : kLong) {
      if (!here.starts_with(two)) continue;
      Take(Token::Kind::kOperator, 2);
      return {};
    }
    if (kShort.find(c) == std::string_view::npos) return Wrong("unexpected \"{}\"", here.substr(0, 1));
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) return Wrong("unexpected \"{}\"", c);
      open.pop_back();
    }
    Take(Token::Kind::kOperator, 1);
    return {};
  }

  const std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  ///< what was read last ends with a line break
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> Tokenize(std::string_view source) { return Lexer(WithPlainLines(source)).Run(); }

}  // namespace millrace::jinja
