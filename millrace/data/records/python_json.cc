#include "millrace/data/records/python_json.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

namespace millrace::data {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

/// Returns the value of the four hexadecimal digits at `at`. Nothing if they are not digits.
std::optional<std::uint32_t> HexAt(std::string_view text, std::size_t at) {
  if (text.size() < at + 4) return std::nullopt;
  std::uint32_t value = 0;
  const char* end = text.data() + at + 4;
  const auto parsed = std::from_chars(text.data() + at, end, value, 16);
  return parsed.ec == std::errc() && parsed.ptr == end ? std::optional(value) : std::nullopt;
}

/// Rewrites a JSON text in one pass. Keeps open brackets in a vector, so that deep nesting cannot overflow the stack.
class PythonJsonRewriter {
 public:
  explicit PythonJsonRewriter(std::string_view text) : text_(text) { out_.reserve(text.size() + text.size() / 8); }

  std::optional<std::string> Run() {
    while (expected_ != Expected::kEnd) {
      SkipSpace();
      if (at_ == text_.size() || !TakeNext()) return std::nullopt;
    }
    SkipSpace();
    if (at_ != text_.size()) return std::nullopt;
    return std::move(out_);
  }

 private:
  enum class Expected { kValue, kValueOrClose, kName, kNameOrClose, kColon, kCommaOrClose, kEnd };
  /// A bracket whose content is kept.
  struct KeptLevel {
    char close = 0;
    bool drops_member = false;     ///< the current member is left out
    std::size_t member_begin = 0;  ///< offset in out_ of the current member and its comma
  };

  void SkipSpace() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").contains(text_[at_])) ++at_;
  }

  bool muted() const { return !muted_.empty(); }
  void Emit(std::string_view text) {
    if (!muted()) out_ += text;
  }

  bool TakeNext() {
    const char c = text_[at_];
    switch (expected_) {
      case Expected::kValueOrClose:
        return c == ']' ? Close(c) : TakeValue(c);
      case Expected::kValue:
        return TakeValue(c);
      case Expected::kNameOrClose:
        return c == '}' ? Close(c) : TakeName(c);
      case Expected::kName:
        return TakeName(c);
      case Expected::kColon:
        if (c != ':') return false;
        ++at_;
        Emit(":");
        expected_ = Expected::kValue;
        return true;
      case Expected::kCommaOrClose:
        return TakeCommaOrClose(c);
      case Expected::kEnd:
        break;
    }
    return false;
  }

  bool TakeValue(char c) {
    if (c == '{' || c == '[') return Open(c);
    if (c == '"') {
      const auto string = TakeString();
      if (!string) return false;
      Emit(string->is_utf8 ? string->text : "null");
    } else if (c == '-' || IsDigit(c)) {
      if (!TakeNumber()) return false;
    } else if (!TakeWord()) {
      return false;
    }
    EndValue();
    return true;
  }

  bool TakeName(char c) {
    if (c != '"') return false;
    const auto string = TakeString();
    if (!string) return false;
    if (!muted()) kept_.back().drops_member = !string->is_utf8;
    Emit(string->text);
    expected_ = Expected::kColon;
    return true;
  }

  bool TakeCommaOrClose(char c) {
    const char close = muted() ? muted_.back() : kept_.back().close;
    if (c == close) return Close(c);
    if (c != ',') return false;
    ++at_;
    if (!muted()) kept_.back().member_begin = out_.size();
    // No comma if all members so far were left out.
    if (muted() || (out_.back() != '{' && out_.back() != '[')) Emit(",");
    expected_ = close == '}' ? Expected::kName : Expected::kValue;
    return true;
  }

  bool Open(char c) {
    ++at_;
    const char close = c == '{' ? '}' : ']';
    if (muted() || kept_.size() >= kKeptNesting) {
      Emit("null");
      muted_ += close;
    } else {
      out_ += c;
      kept_.push_back({.close = close, .member_begin = out_.size()});
    }
    expected_ = c == '{' ? Expected::kNameOrClose : Expected::kValueOrClose;
    return true;
  }

  bool Close(char c) {
    ++at_;
    if (muted()) {
      if (muted_.back() != c) return false;
      muted_.pop_back();
    } else {
      if (kept_.back().close != c) return false;
      out_ += c;
      kept_.pop_back();
    }
    EndValue();
    return true;
  }

  /// Decides what may follow a value.
  void EndValue() {
    if (!muted() && kept_.empty()) {
      expected_ = Expected::kEnd;
      return;
    }
    if (!muted() && std::exchange(kept_.back().drops_member, false)) out_.resize(kept_.back().member_begin);
    expected_ = Expected::kCommaOrClose;
  }

  struct TakenString {
    std::string_view text;  ///< with its quotes
    bool is_utf8 = true;
  };
  std::optional<TakenString> TakeString() {
    const std::size_t begin = at_++;
    bool is_utf8 = true;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return TakenString{text_.substr(begin, at_ - begin), is_utf8};
      if (static_cast<unsigned char>(c) < 0x20) return std::nullopt;
      if (c == '\\' && !TakeEscape(is_utf8)) return std::nullopt;
    }
    return std::nullopt;
  }

  /// Takes an escape after its backslash.
  bool TakeEscape(bool& is_utf8) {
    if (at_ == text_.size()) return false;
    const char c = text_[at_++];
    if (c != 'u') return std::string_view("\"\\/bfnrt").contains(c);
    const auto unit = HexAt(text_, at_);
    if (!unit) return false;
    at_ += 4;
    if (*unit < 0xD800 || *unit > 0xDFFF) return true;
    std::optional<std::uint32_t> low;
    if (*unit < 0xDC00 && text_.substr(at_).starts_with("\\u")) low = HexAt(text_, at_ + 2);
    if (low && *low >= 0xDC00 && *low <= 0xDFFF) {
      at_ += 6;
    } else {
      is_utf8 = false;
    }
    return true;
  }

  void TakeDigits() {
    while (at_ < text_.size() && IsDigit(text_[at_])) ++at_;
  }
  char Ahead(std::size_t by = 0) const { return at_ + by < text_.size() ? text_[at_ + by] : '\0'; }

  bool TakeNumber() {
    const std::size_t begin = at_;
    if (Ahead() == '-') ++at_;
    if (text_.substr(at_).starts_with("Infinity")) {
      at_ += std::string_view("Infinity").size();
      EmitNumber("-inf");
      return true;
    }
    if (!IsDigit(Ahead())) return false;
    Ahead() == '0' ? void(++at_) : TakeDigits();
    bool is_integer = true;
    if (Ahead() == '.' && IsDigit(Ahead(1))) {
      is_integer = false;
      ++at_;
      TakeDigits();
    }
    if (Ahead() == 'e' || Ahead() == 'E') {
      const std::size_t sign = Ahead(1) == '+' || Ahead(1) == '-' ? 1 : 0;
      if (!IsDigit(Ahead(1 + sign))) return false;
      is_integer = false;
      at_ += 1 + sign;
      TakeDigits();
    }
    KeepNumber(text_.substr(begin, at_ - begin), is_integer);
    return true;
  }

  /// Emits the number unchanged if a 64-bit integer or a finite double holds it.
  void KeepNumber(std::string_view number, bool is_integer) {
    const char* const begin = number.data();
    const char* const end = begin + number.size();
    if (is_integer) {
      std::int64_t as_signed = 0;
      std::uint64_t as_unsigned = 0;
      const bool fits = std::from_chars(begin, end, as_signed).ec == std::errc() ||
                        std::from_chars(begin, end, as_unsigned).ec == std::errc();
      return fits ? Emit(number) : EmitNumber(number);
    }
    double value = 0;
    if (std::from_chars(begin, end, value).ec == std::errc()) return Emit(number);
    value = std::strtod(std::string(number).c_str(), nullptr);  // out of range: too large, or too near to 0
    if (std::isinf(value)) return EmitNumber(value < 0 ? "-inf" : "inf");
    Emit(number);
  }

  /// Emits a number that simdjson cannot hold: `printed`, or null below the outermost object.
  void EmitNumber(std::string_view printed) {
    if (kept_.size() != 1 || kept_[0].close != '}') return Emit("null");
    Emit("\"");
    Emit(printed);
    Emit("\"");
  }

  bool TakeWord() {
    for (std::string_view word : {"true", "false", "null", "NaN", "Infinity"}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      if (word == "NaN") {
        EmitNumber("nan");
      } else if (word == "Infinity") {
        EmitNumber("inf");
      } else {
        Emit(word);
      }
      return true;
    }
    return false;
  }

  const std::string_view text_;
  std::size_t at_ = 0;
  Expected expected_ = Expected::kValue;
  std::vector<KeptLevel> kept_;
  std::string muted_;  ///< closing brackets of the open levels that are not kept
  std::string out_;
};

}  // namespace

std::optional<std::string> RewriteForParser(std::string_view text) { return PythonJsonRewriter(text).Run(); }

void AppendPythonFloat(double value, std::string& out) {
  if (std::isnan(value)) {
    out += "nan";
    return;
  }
  if (std::isinf(value)) {
    out += value < 0 ? "-inf" : "inf";
    return;
  }
  // Shortest digits that read back as the value: d.ddde±x. Python writes the exponent below 1e-4 and from 1e16 on.
  std::array<char, 32> buffer{};
  const auto printed =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<std::size_t>(printed.ptr - buffer.data()));
  const std::size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    out += text;
    return;
  }
  std::array<char, 64> fixed{};
  const auto plain = std::to_chars(fixed.data(), fixed.data() + fixed.size(), value, std::chars_format::fixed);
  const std::string_view digits(fixed.data(), static_cast<std::size_t>(plain.ptr - fixed.data()));
  out += digits;
  if (!digits.contains('.')) out += ".0";
}

}  // namespace millrace::data
