#include "millrace/serve/constraint/regex.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>

#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::serve {
namespace {

using Ranges = std::vector<std::pair<char32_t, char32_t>>;
constexpr char32_t kLast = 0x10FFFF;
constexpr int kMaxRepeat = 1000;

/// A parsed expression. The grammar is made from it, back to front.
struct Part {
  enum class Kind { kCharacters, kSequence, kChoice, kRepeat };
  Kind kind = Kind::kSequence;
  Ranges characters = {};
  std::vector<Part> parts = {};
  int least = 0, most = 0;  ///< of kRepeat; most < 0: without end
};

/// Sorts ranges and joins those that touch.
Ranges Normalized(Ranges ranges) {
  std::sort(ranges.begin(), ranges.end());
  Ranges joined;
  for (const auto& [first, last] : ranges) {
    if (!joined.empty() && first <= joined.back().second + 1) {
      joined.back().second = std::max(joined.back().second, last);
    } else {
      joined.emplace_back(first, last);
    }
  }
  return joined;
}

Ranges Complement(const Ranges& ranges) {
  Ranges others;
  char32_t begin = 0;
  for (const auto& [first, last] : Normalized(ranges)) {
    if (first > begin) others.emplace_back(begin, first - 1);
    begin = last + 1;
  }
  if (begin <= kLast) others.emplace_back(begin, kLast);
  return others;
}

class RegexParser {
 public:
  RegexParser(std::string_view pattern, RegexUse use) : pattern_(pattern), use_(use) {}

  Result<Part> Run() {
    Part all = MR_TRY(ParseChoice());
    if (at_ < pattern_.size()) return Wrong("unexpected \")\"");
    return all;
  }

 private:
  template <class... Arguments>
  std::unexpected<Error> Wrong(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
    return Fail(Code::kInvalidArgument, "regular expression, byte {}: {}", at_,
                fmt::format(format, std::forward<Arguments>(arguments)...));
  }
  std::unexpected<Error> Unsupported(std::string_view what) const {
    return Fail(Code::kUnsupported, "regular expression, byte {}: {} is not supported", at_, what);
  }
  bool Is(char c) const { return at_ < pattern_.size() && pattern_[at_] == c; }
  bool Skip(char c) {
    if (!Is(c)) return false;
    ++at_;
    return true;
  }

  Result<Part> ParseChoice() {
    if (++depth_ > 100) return Wrong("too many groups within each other");
    Part choice{.kind = Part::Kind::kChoice};
    do {
      Part one = MR_TRY(ParseSequence());
      choice.parts.push_back(std::move(one));
    } while (Skip('|'));
    --depth_;
    return choice;
  }

  Result<Part> ParseSequence() {
    Part sequence{.kind = Part::Kind::kSequence};
    // Where the whole text is matched, its ends may be named or not. Elsewhere anything may stand before and behind.
    const bool outermost = depth_ == 1, part_of_text = outermost && use_ == RegexUse::kJsonPattern;
    const bool from_start = outermost && Skip('^');
    bool to_end = false;
    if (part_of_text && !from_start) sequence.parts.push_back(Anything());
    while (at_ < pattern_.size() && !Is('|') && !Is(')')) {
      if (Is('$')) {
        const bool at_end = at_ + 1 == pattern_.size() || pattern_[at_ + 1] == '|';
        if (!outermost || !at_end) return Unsupported("\"$\" before the end");
        ++at_;
        to_end = true;
        break;
      }
      Part one = MR_TRY(ParseOne());
      Part repeated = MR_TRY(ParseRepeat(std::move(one)));
      sequence.parts.push_back(std::move(repeated));
    }
    if (part_of_text && !to_end) sequence.parts.push_back(Anything());
    return sequence;
  }

  /// Any characters, also none.
  static Part Anything() {
    Part repeat{.kind = Part::Kind::kRepeat, .least = 0, .most = -1};
    repeat.parts.push_back({.kind = Part::Kind::kCharacters, .characters = {{0, kLast}}});
    return repeat;
  }

  Result<Part> ParseRepeat(Part one) {
    int least = 1, most = 1;
    if (Skip('*')) {
      least = 0, most = -1;
    } else if (Skip('+')) {
      most = -1;
    } else if (Skip('?')) {
      least = 0;
    } else if (IsCount()) {
      ++at_;
      least = MR_TRY(ParseCount());
      most = least;
      if (Skip(',')) most = Is('}') ? -1 : MR_TRY(ParseCount());
      if (!Skip('}')) return Wrong("a repetition wants \"}}\"");
      if (most >= 0 && most < least) return Wrong("a repetition of {} to {}", least, most);
    } else {
      return one;
    }
    Skip('?');  // a lazy repetition: the same whole matches
    if (Is('+')) return Unsupported("a possessive repetition");
    if (Is('*') || IsCount()) return Wrong("a repetition of a repetition");
    Part repeat{.kind = Part::Kind::kRepeat, .least = least, .most = most};
    repeat.parts.push_back(std::move(one));
    return repeat;
  }

  /// Returns whether "{m}", "{m,}" or "{m,n}" follows. Other braces stand for themselves, as in Python.
  bool IsCount() const {
    const std::string_view rest = pattern_.substr(at_);
    const std::size_t end = rest.find_first_not_of("0123456789,", 1);
    return rest.size() > 1 && rest.starts_with('{') && rest[1] >= '0' && rest[1] <= '9' && end != rest.npos &&
           rest[end] == '}';
  }

  Result<int> ParseCount() {
    int count = 0;
    const auto [end, error] = std::from_chars(pattern_.data() + at_, pattern_.data() + pattern_.size(), count);
    if (error != std::errc() || count < 0) return Wrong("a repetition wants a number");
    if (count > kMaxRepeat) return Wrong("a repetition of more than {}", kMaxRepeat);
    at_ = static_cast<std::size_t>(end - pattern_.data());
    return count;
  }

  Result<Part> ParseOne() {
    if (Is('(')) {
      ++at_;
      if (Skip('?') && !Skip(':') && !SkipName()) {
        return Unsupported("a group with \"?\" other than \"(?:\" and \"(?P<name>\"");
      }
      Part group = MR_TRY(ParseChoice());
      if (!Skip(')')) return Wrong("a group has no \")\"");
      return group;
    }
    if (Is('[')) {
      Ranges characters = MR_TRY(ParseClass());
      return Part{.kind = Part::Kind::kCharacters, .characters = std::move(characters)};
    }
    if (Is('*') || Is('+') || Is('?') || IsCount()) return Wrong("nothing to repeat");
    if (Is('^')) return Unsupported("\"^\" behind the beginning");
    if (Skip('.')) return Part{.kind = Part::Kind::kCharacters, .characters = Complement({{'\n', '\n'}})};
    if (Skip('\\')) {
      Ranges characters = MR_TRY(ParseEscape());
      return Part{.kind = Part::Kind::kCharacters, .characters = std::move(characters)};
    }
    const char32_t code = MR_TRY(ParseCharacter());
    return Part{.kind = Part::Kind::kCharacters, .characters = {{code, code}}};
  }

  /// Skips "P<name>" or "<name>".
  bool SkipName() {
    std::size_t at = at_ + (Is('P') ? 1 : 0);
    if (at >= pattern_.size() || pattern_[at] != '<') return false;
    const std::size_t begin = ++at;
    const auto in_name = [](char c) {
      return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    };
    while (at < pattern_.size() && in_name(pattern_[at])) ++at;
    if (at == begin || at == pattern_.size() || pattern_[at] != '>') return false;
    at_ = at + 1;
    return true;
  }

  Result<char32_t> ParseCharacter() {
    const auto [code, length] = tokenizer::DecodeUtf8(pattern_.data() + at_, pattern_.data() + pattern_.size());
    if (code == tokenizer::kInvalid) return Wrong("no UTF-8");
    at_ += length;
    return code;
  }

  /// Parses what follows a backslash.
  Result<Ranges> ParseEscape() {
    if (at_ == pattern_.size()) return Wrong("nothing behind the backslash");
    Ranges digit = {{'0', '9'}}, space = {{'\t', '\r'}, {' ', ' '}},
           word = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    const char c = pattern_[at_++];
    switch (c) {
      case 'd':
        return digit;
      case 'D':
        return Complement(digit);
      case 's':
        return space;
      case 'S':
        return Complement(space);
      case 'w':
        return word;
      case 'W':
        return Complement(word);
      case 'n':
        return Ranges{{'\n', '\n'}};
      case 'r':
        return Ranges{{'\r', '\r'}};
      case 't':
        return Ranges{{'\t', '\t'}};
      case 'x':
        return ParseCode(2);
      case 'u':
        return ParseCode(4);
      default:
        break;
    }
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter) return Unsupported(fmt::format("\"\\{}\"", c));
    --at_;
    const char32_t code = MR_TRY(ParseCharacter());
    return Ranges{{code, code}};
  }

  Result<Ranges> ParseCode(std::size_t digits) {
    std::uint32_t code = 0;
    const char* begin = pattern_.data() + at_;
    const char* end = pattern_.data() + std::min(pattern_.size(), at_ + digits);
    const auto parsed = std::from_chars(begin, end, code, 16);
    const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
    if (parsed.ptr != begin + digits || surrogate)
      return Wrong("{} hexadecimal digits of a character are wanted", digits);
    at_ += digits;
    return Ranges{{code, code}};
  }

  Result<Ranges> ParseClass() {
    ++at_;
    const bool complement = Skip('^');
    Ranges ranges;
    for (bool first = true; first || !Is(']'); first = false) {
      if (at_ == pattern_.size()) return Wrong("a class has no \"]\"");
      Ranges item = MR_TRY(ParseClassItem());
      const bool single = item.size() == 1 && item[0].first == item[0].second;
      if (single && Is('-') && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']') {
        ++at_;
        const Ranges end = MR_TRY(ParseClassItem());
        if (end.size() != 1 || end[0].first != end[0].second || end[0].first < item[0].first) {
          return Wrong("a range of a class has no order");
        }
        item[0].second = end[0].first;
      }
      ranges.insert(ranges.end(), item.begin(), item.end());
    }
    ++at_;
    ranges = complement ? Complement(ranges) : Normalized(std::move(ranges));
    if (ranges.empty()) return Wrong("a class without characters");
    return ranges;
  }

  Result<Ranges> ParseClassItem() {
    if (Skip('\\')) return ParseEscape();
    if (Is('[') && at_ + 1 < pattern_.size() && pattern_[at_ + 1] == ':') return Unsupported("a named class");
    const char32_t code = MR_TRY(ParseCharacter());
    return Ranges{{code, code}};
  }

  const std::string_view pattern_;
  const RegexUse use_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

class RegexBuilder {
 public:
  RegexBuilder(bool in_json_string, Grammar& grammar) : in_json_string_(in_json_string), grammar_(grammar) {}

  Result<Grammar::NodeId> Add(const Part& part, Grammar::NodeId next) {
    MR_TRY(grammar_.Check());
    switch (part.kind) {
      case Part::Kind::kCharacters:
        return Characters(part.characters, next);
      case Part::Kind::kSequence:
        for (auto each = part.parts.rbegin(); each != part.parts.rend(); ++each) next = MR_TRY(Add(*each, next));
        return next;
      case Part::Kind::kChoice: {
        std::vector<Grammar::NodeId> choices;
        for (const Part& each : part.parts) choices.push_back(MR_TRY(Add(each, next)));
        return grammar_.Choice(choices);
      }
      case Part::Kind::kRepeat:
        return Repeat(part, next);
    }
    return next;
  }

 private:
  Result<Grammar::NodeId> Repeat(const Part& part, Grammar::NodeId next) {
    const Part& one = part.parts.front();
    Grammar::NodeId after = next;
    if (part.most < 0) {
      const Grammar::NodeId loop = grammar_.Loop(next);
      grammar_.SetOther(loop, MR_TRY(Add(one, loop)));
      after = loop;
    }
    for (int i = part.least; i < part.most; ++i) after = grammar_.Choice(next, MR_TRY(Add(one, after)));
    for (int i = 0; i < part.least; ++i) after = MR_TRY(Add(one, after));
    return after;
  }

  Result<Grammar::NodeId> Characters(const Ranges& ranges, Grammar::NodeId next) {
    if (!in_json_string_) return grammar_.Character(ranges, next);
    // JSON writes these with a backslash, and has no other control characters here.
    Ranges plain;
    std::vector<Grammar::NodeId> choices;
    for (const auto& [first, last] : ranges) {
      for (const auto& [least, most] : Ranges{{0x20, '!'}, {'#', '['}, {']', kLast}}) {
        if (std::max(first, least) <= std::min(last, most))
          plain.emplace_back(std::max(first, least), std::min(last, most));
      }
      const bool one = first == last;
      for (const auto& [code, escape] : std::vector<std::pair<char32_t, std::string_view>>{
               {'"', "\\\""}, {'\\', "\\\\"}, {'\n', "\\n"}, {'\r', "\\r"}, {'\t', "\\t"}}) {
        // A range, such as that of ".", takes only the quote and the backslash of these.
        if (first <= code && code <= last && (one || code >= 0x20)) choices.push_back(grammar_.Text(escape, next));
      }
    }
    if (!plain.empty()) choices.push_back(grammar_.Character(plain, next));
    if (choices.empty()) return Fail(Code::kUnsupported, "regular expression: control characters in a string of JSON");
    return grammar_.Choice(choices);
  }

  const bool in_json_string_;
  Grammar& grammar_;
};

}  // namespace

Result<Grammar::NodeId> AddRegex(std::string_view pattern, RegexUse use, Grammar& grammar, Grammar::NodeId next) {
  const Part all = MR_TRY(RegexParser(pattern, use).Run());
  const Grammar::NodeId start = MR_TRY(RegexBuilder(use != RegexUse::kText, grammar).Add(all, next));
  MR_TRY(grammar.Check());
  return start;
}

}  // namespace millrace::serve
