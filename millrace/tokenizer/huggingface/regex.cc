#include "millrace/tokenizer/huggingface/regex.h"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>

#include "millrace/tokenizer/huggingface/character_ranges.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {
namespace {

using Ranges = CharacterRanges;
constexpr std::uint32_t kUnbounded = UINT32_MAX;
// Guesses, far above the patterns of published files. They bound the time and the stack that a hostile file can take.
constexpr std::uint32_t kMaxRepeat = 64;   // longer counted repetitions make large programs
constexpr std::size_t kMaxDepth = 32;      // of groups
constexpr std::size_t kMaxProgram = 8192;  // instructions

struct RegexNode {
  enum class Type : std::uint8_t {
    kSet,
    kSequence,
    kChoice,
    kRepeat,
    kLook,
    kBehind,
    kLineBegin,
    kLineEnd,
    kTextEnd,
    kBoundary
  };
  Type type = Type::kSequence;
  Ranges ranges;  ///< kSet, kBehind: the characters
  std::vector<RegexNode> children;
  std::uint32_t least = 0, most = 0;  ///< bounds of a repetition
  bool lazy = false, possessive = false, negative = false;
};

/// Returns true if a match may be empty.
bool MayBeEmpty(const RegexNode& node) {
  using Type = RegexNode::Type;
  switch (node.type) {
    case Type::kSet:
      return false;
    case Type::kSequence:
      return std::ranges::all_of(node.children, MayBeEmpty);
    case Type::kChoice:
      return std::ranges::any_of(node.children, MayBeEmpty);
    case Type::kRepeat:
      return node.least == 0 || MayBeEmpty(node.children[0]);
    default:
      return true;
  }
}

bool RepeatsWithoutBound(const RegexNode& node) {
  return (node.type == RegexNode::Type::kRepeat && node.most == kUnbounded) ||
         std::ranges::any_of(node.children, RepeatsWithoutBound);
}

/// Appends the characters that a match of `node` may begin with.
void AddBeginnings(const RegexNode& node, Ranges& ranges) {
  if (node.type == RegexNode::Type::kSet) ranges.insert(ranges.end(), node.ranges.begin(), node.ranges.end());
  if (node.type == RegexNode::Type::kLook) return;
  for (const RegexNode& child : node.children) {
    AddBeginnings(child, ranges);
    if (node.type == RegexNode::Type::kSequence && !MayBeEmpty(child)) return;
  }
}

class RegexParser {
 public:
  explicit RegexParser(std::string_view pattern) : pattern_(pattern), rest_(pattern) {}

  Result<RegexNode> Parse() {
    auto node = MR_TRY(ParseChoice(0));
    if (!rest_.empty()) return Refuse("an unmatched )");
    if (MayBeEmpty(node)) return Refuse("a match of nothing");
    return node;
  }

 private:
  using Type = RegexNode::Type;

  std::unexpected<Error> Refuse(std::string_view what) const {
    return Fail(Code::kUnsupported, "the tokenizer's pattern {:?} holds {}, which is not supported", pattern_, what);
  }
  bool Take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  char32_t TakeCharacter() {
    const DecodedCharacter character = DecodeUtf8(rest_.data(), rest_.data() + rest_.size());
    rest_.remove_prefix(character.length);
    return character.code;
  }

  Result<RegexNode> ParseChoice(std::size_t depth) {
    if (depth > kMaxDepth) return Refuse("groups nested too deeply");
    RegexNode choice{.type = Type::kChoice};
    do {
      RegexNode sequence;
      while (!rest_.empty() && rest_[0] != '|' && rest_[0] != ')') {
        auto item = MR_TRY(ParseItem(depth));
        sequence.children.push_back(MR_TRY(ParseRepeat(std::move(item))));
      }
      choice.children.push_back(std::move(sequence));
    } while (Take("|"));
    return choice.children.size() == 1 ? std::move(choice.children[0]) : std::move(choice);
  }

  Result<RegexNode> ParseItem(std::size_t depth) {
    if (Take("(")) return ParseGroup(depth);
    if (Take("[")) {
      Ranges ranges = MR_TRY(ParseSet(0));
      return RegexNode{.type = Type::kSet, .ranges = std::move(ranges)};
    }
    if (Take("^")) return RegexNode{.type = Type::kLineBegin};
    if (Take("$")) return RegexNode{.type = Type::kLineEnd};
    if (Take(".")) return RegexNode{.type = Type::kSet, .ranges = Inverted({{'\n', '\n'}})};
    if (rest_[0] == '*' || rest_[0] == '+' || rest_[0] == '?') return Refuse("a repetition of nothing");
    // No character is in front of the text's start.
    if (Take("\\A")) return RegexNode{.type = Type::kBehind, .ranges = Inverted({}), .negative = true};
    if (Take("\\z")) return RegexNode{.type = Type::kTextEnd};
    if (rest_.starts_with("\\b") || rest_.starts_with("\\B")) {
      const bool negative = rest_[1] == 'B';
      rest_.remove_prefix(2);
      return RegexNode{.type = Type::kBoundary, .negative = negative};
    }
    if (Take("\\")) {
      Ranges ranges = MR_TRY(ParseEscape());
      if (IsSingle(ranges)) ranges = MR_TRY(Fold(std::move(ranges)));
      return RegexNode{.type = Type::kSet, .ranges = std::move(ranges)};
    }
    const char32_t code = TakeCharacter();
    if (folds_ && !rest_.empty() && FoldTogether(code, static_cast<unsigned char>(rest_[0]))) {
      return Refuse("letters in a group (?i: that one character stands for");
    }
    Ranges ranges = MR_TRY(Fold({{code, code}}));
    return RegexNode{.type = Type::kSet, .ranges = std::move(ranges)};
  }

  /// Returns the ranges, in a group (?i: with the characters that differ in case alone.
  Result<Ranges> Fold(Ranges ranges) const {
    if (!folds_) return ranges;
    if (std::ranges::any_of(ranges, [](const auto& range) { return range.second >= 0x80; })) {
      return Refuse("characters beyond ASCII in a group (?i:");
    }
    return Folded(ranges);
  }

  Result<RegexNode> ParseGroup(std::size_t depth) {
    if (Take("?<=")) return ParseBehind(depth, false);
    if (Take("?<!")) return ParseBehind(depth, true);
    if (Take("?i:")) return ParseFoldedGroup(depth);
    RegexNode look{.type = Type::kLook};
    const bool ahead = Take("?=");
    look.negative = !ahead && Take("?!");
    const bool is_look = ahead || look.negative;
    if (!is_look && !Take("?:") && rest_.starts_with('?'))
      return Refuse(fmt::format("a group ({}", rest_.substr(0, 3)));
    auto inner = MR_TRY(ParseChoice(depth + 1));
    if (!Take(")")) return Refuse("an unmatched (");
    if (!is_look) return inner;
    look.children.push_back(std::move(inner));
    return look;
  }

  Result<RegexNode> ParseFoldedGroup(std::size_t depth) {
    const bool outer = std::exchange(folds_, true);
    auto inner = MR_TRY(ParseChoice(depth + 1));
    folds_ = outer;
    if (!Take(")")) return Refuse("an unmatched (");
    return inner;
  }

  /// Parses a look-behind, which is a choice of characters.
  Result<RegexNode> ParseBehind(std::size_t depth, bool negative) {
    const RegexNode inner = MR_TRY(ParseChoice(depth + 1));
    if (!Take(")")) return Refuse("an unmatched (");
    RegexNode behind{.type = Type::kBehind, .negative = negative};
    const std::vector<RegexNode> one = {inner};
    for (const RegexNode& choice : inner.type == Type::kChoice ? inner.children : one) {
      const bool in_sequence = choice.type == Type::kSequence && choice.children.size() == 1;
      const RegexNode& character = in_sequence ? choice.children[0] : choice;
      if (character.type != Type::kSet) return Refuse("a look-behind of other than one character");
      behind.ranges.insert(behind.ranges.end(), character.ranges.begin(), character.ranges.end());
    }
    return behind;
  }

  Result<RegexNode> ParseRepeat(RegexNode item) {
    RegexNode repeat{.type = Type::kRepeat};
    bool counted = false;
    if (Take("*")) {
      repeat.most = kUnbounded;
    } else if (Take("+")) {
      repeat.least = 1;
      repeat.most = kUnbounded;
    } else if (Take("?")) {
      repeat.most = 1;
    } else if (rest_.starts_with('{')) {
      counted = true;
      MR_TRY(ParseCounts(repeat));
    } else {
      return item;
    }
    if (counted && (rest_.starts_with('+') || rest_.starts_with('?'))) return Refuse("a repetition of {…}");
    repeat.lazy = Take("?");
    repeat.possessive = !repeat.lazy && Take("+");
    if (rest_.starts_with('*') || rest_.starts_with('+') || rest_.starts_with('?') || rest_.starts_with('{')) {
      return Refuse("a repetition of a repetition");
    }
    if (MayBeEmpty(item)) return Refuse("a repetition of what may be nothing");
    if (repeat.most > 1 && RepeatsWithoutBound(item)) return Refuse("a repetition of a repetition");
    repeat.children.push_back(std::move(item));
    return repeat;
  }

  Status ParseCounts(RegexNode& repeat) {
    const std::size_t end = rest_.find('}');
    std::string_view counts = rest_.substr(1, end == rest_.npos ? 0 : end - 1);
    auto number = [&]() -> std::optional<std::uint32_t> {
      if (counts.empty() || counts[0] < '0' || counts[0] > '9') return std::nullopt;
      std::uint32_t value = 0;
      while (!counts.empty() && counts[0] >= '0' && counts[0] <= '9' && value <= kMaxRepeat) {
        value = 10 * value + static_cast<std::uint32_t>(counts[0] - '0');
        counts.remove_prefix(1);
      }
      return value;
    };
    const auto least = number();
    if (!least) return Refuse("{ without a count");
    repeat.least = repeat.most = *least;
    if (counts.starts_with(',')) {
      counts.remove_prefix(1);
      repeat.most = number().value_or(kUnbounded);
    }
    const bool too_many = repeat.least > kMaxRepeat || (repeat.most > kMaxRepeat && repeat.most != kUnbounded);
    if (!counts.empty() || repeat.least > repeat.most || repeat.most == 0 || too_many)
      return Refuse("such counts in {}");
    rest_.remove_prefix(end + 1);
    return {};
  }

  /// Parses an escape after its backslash.
  Result<Ranges> ParseEscape() {
    if (rest_.empty()) return Refuse("a backslash at its end");
    const char32_t code = TakeCharacter();
    switch (code) {
      case 's':
        return BlankRanges();
      case 'S':
        return Inverted(BlankRanges());
      case 'd':
        return *CategoryRanges("Nd");
      case 'D':
        return Inverted(*CategoryRanges("Nd"));
      case 'w':
        return WordRanges();
      case 'W':
        return Inverted(WordRanges());
      case 'n':
        return Ranges{{'\n', '\n'}};
      case 'r':
        return Ranges{{'\r', '\r'}};
      case 't':
        return Ranges{{'\t', '\t'}};
      case 'p':
      case 'P':
        if (folds_) return Refuse("\\p in a group (?i:");
        return ParseProperty(code == 'P');
      case 'x':
        return ParseHexadecimal(2, 0x7F);
      case 'u':
        return ParseHexadecimal(4, 0xFFFF);
      default:
        break;
    }
    const bool plain = code < 0x80 && code > ' ' && !(code >= '0' && code <= '9') && !(code >= 'a' && code <= 'z') &&
                       !(code >= 'A' && code <= 'Z') && code != '<' && code != '>';
    if (!plain && code != ' ') return Refuse(fmt::format("an escaped U+{:04X}", static_cast<std::uint32_t>(code)));
    return Ranges{{code, code}};
  }

  /// Parses the digits of \x or \u, for a character up to `last`.
  Result<Ranges> ParseHexadecimal(std::size_t digits, char32_t last) {
    constexpr std::string_view kDigits = "0123456789abcdef0123456789ABCDEF";
    char32_t code = 0;
    for (std::size_t i = 0; i < digits; ++i) {
      const std::size_t digit = i < rest_.size() ? kDigits.find(rest_[i]) : kDigits.npos;
      if (digit == kDigits.npos) return Refuse("an escape with too few hexadecimal digits");
      code = 16 * code + static_cast<char32_t>(digit % 16);
    }
    if (code > last || (code >= 0xD800 && code < 0xE000)) return Refuse("an escape of such a character");
    rest_.remove_prefix(digits);
    return Ranges{{code, code}};
  }

  Result<Ranges> ParseProperty(bool inverted) {
    const std::size_t end = rest_.find('}');
    if (!Take("{") || end == rest_.npos) return Refuse("\\p without a name in braces");
    std::string_view name = rest_.substr(0, end - 1);
    if (name.starts_with('^')) {
      inverted = !inverted;
      name.remove_prefix(1);
    }
    auto ranges = CategoryRanges(name);
    if (!ranges) return Refuse(fmt::format("\\p{{{}}}", name));
    rest_.remove_prefix(end);
    return inverted ? Inverted(*std::move(ranges)) : *std::move(ranges);
  }

  /// Parses a set after its opening bracket.
  Result<Ranges> ParseSet(std::size_t depth) {
    if (depth > kMaxDepth) return Refuse("sets nested too deeply");
    const bool inverted = Take("^");
    Ranges ranges;
    std::optional<Ranges> all_of;  // the sets in front of each &&
    const auto close = [&] {
      ranges = all_of ? Intersection(*std::move(all_of), std::move(ranges)) : Sorted(std::move(ranges));
    };
    if (rest_.starts_with(']')) return Refuse("a ] at the beginning of a set");
    while (!rest_.starts_with(']')) {
      if (rest_.empty()) return Refuse("an unmatched [");
      if (rest_.starts_with("[:")) return Refuse("[: in a set");
      if (Take("&&")) {
        close();
        all_of = std::exchange(ranges, {});
        if (all_of->empty() || rest_.starts_with(']')) return Refuse("&& next to an empty set");
        continue;
      }
      if (Take("[")) {
        const Ranges inner = MR_TRY(ParseSet(depth + 1));
        ranges.insert(ranges.end(), inner.begin(), inner.end());
        continue;
      }
      Ranges one;
      if (Take("\\")) {
        one = MR_TRY(ParseEscape());
      } else {
        const char32_t code = TakeCharacter();
        if (code == '-' && !ranges.empty() && !rest_.starts_with(']')) return Refuse("a - between sets");
        one = {{code, code}};
      }
      const bool single = IsSingle(one);
      if (single && rest_.starts_with('-') && !rest_.starts_with("-]")) {
        rest_.remove_prefix(1);
        Ranges last;
        if (Take("\\")) {
          last = MR_TRY(ParseEscape());
        } else if (!rest_.empty() && rest_[0] != '[') {
          const char32_t code = TakeCharacter();
          last = {{code, code}};
        }
        if (!IsSingle(last) || last[0].first < one[0].first) {
          return Refuse("such a range");
        }
        one[0].second = last[0].first;
      }
      if (single) one = MR_TRY(Fold(std::move(one)));
      ranges.insert(ranges.end(), one.begin(), one.end());
    }
    rest_.remove_prefix(1);
    close();
    return inverted ? Inverted(std::move(ranges)) : ranges;
  }

  std::string_view pattern_, rest_;
  bool folds_ = false;  ///< inside of a group (?i:
};

}  // namespace

/// Writes the program of a parsed pattern.
class RegexCompiler {
 public:
  static Result<Regex> Compile(const RegexNode& node) {
    Regex regex;
    RegexCompiler compiler(regex);
    compiler.Write(node);
    regex.program_.push_back({Regex::Op::kMatch});
    if (regex.program_.size() > kMaxProgram) {
      return Fail(Code::kUnsupported, "the tokenizer's pattern is longer than is supported");
    }
    Ranges beginnings;
    AddBeginnings(node, beginnings);
    regex.begins_ = ToSet(std::move(beginnings));
    return regex;
  }

 private:
  using Op = Regex::Op;
  using Type = RegexNode::Type;

  explicit RegexCompiler(Regex& regex) : regex_(regex) {}

  static Regex::CharacterSet ToSet(Ranges ranges) {
    Regex::CharacterSet set;
    for (auto [first, last] : ranges) {
      for (char32_t code = first; code <= last && code < 128; ++code) set.ascii[code] = true;
    }
    set.ranges = Sorted(std::move(ranges));
    return set;
  }

  std::uint32_t AddSet(Ranges ranges) {
    regex_.sets_.push_back(ToSet(std::move(ranges)));
    return static_cast<std::uint32_t>(regex_.sets_.size() - 1);
  }
  std::uint32_t Here() const { return static_cast<std::uint32_t>(regex_.program_.size()); }
  std::uint32_t Put(Op op, std::uint32_t first = 0, std::uint32_t second = 0) {
    regex_.program_.push_back({op, first, second});
    return Here() - 1;
  }

  void Write(const RegexNode& node) {
    if (Here() > kMaxProgram) return;
    switch (node.type) {
      case Type::kSet:
        Put(Op::kSet, AddSet(node.ranges));
        return;
      case Type::kSequence:
        for (const RegexNode& child : node.children) Write(child);
        return;
      case Type::kChoice:
        return WriteChoice(node);
      case Type::kRepeat:
        return WriteRepeat(node);
      case Type::kLook: {
        const std::uint32_t look = Put(Op::kLook, 0, node.negative ? 1 : 0);
        Write(node.children[0]);
        Put(Op::kMatch);
        regex_.program_[look].first = Here();
        return;
      }
      case Type::kBehind:
        Put(Op::kBehind, AddSet(node.ranges), node.negative ? 1 : 0);
        return;
      case Type::kBoundary:
        Put(Op::kBoundary, AddSet(WordRanges()), node.negative ? 1 : 0);
        return;
      case Type::kLineBegin:
        Put(Op::kLineBegin);
        return;
      case Type::kLineEnd:
        Put(Op::kLineEnd);
        return;
      case Type::kTextEnd:
        Put(Op::kTextEnd);
        return;
    }
  }

  void WriteChoice(const RegexNode& node) {
    std::vector<std::uint32_t> jumps;
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      if (i + 1 == node.children.size()) {
        Write(node.children[i]);
        break;
      }
      const std::uint32_t split = Put(Op::kSplit);
      regex_.program_[split].first = Here();
      Write(node.children[i]);
      jumps.push_back(Put(Op::kJump));
      regex_.program_[split].second = Here();
    }
    for (const std::uint32_t jump : jumps) regex_.program_[jump].first = Here();
  }

  void WriteRepeat(const RegexNode& node) {
    std::uint32_t atomic = 0;
    if (node.possessive) atomic = Put(Op::kAtomic);
    for (std::uint32_t i = 0; i < node.least; ++i) Write(node.children[0]);
    auto link = [&](std::uint32_t split, std::uint32_t more, std::uint32_t done) {
      regex_.program_[split].first = node.lazy ? done : more;
      regex_.program_[split].second = node.lazy ? more : done;
    };
    if (node.most == kUnbounded) {
      const std::uint32_t split = Put(Op::kSplit);
      Write(node.children[0]);
      Put(Op::kJump, split);
      link(split, split + 1, Here());
    } else {
      std::vector<std::uint32_t> splits;
      for (std::uint32_t i = node.least; i < node.most; ++i) {
        splits.push_back(Put(Op::kSplit));
        Write(node.children[0]);
      }
      for (const std::uint32_t split : splits) link(split, split + 1, Here());
    }
    if (!node.possessive) return;
    Put(Op::kMatch);
    regex_.program_[atomic].first = Here();
  }

  Regex& regex_;
};

Result<Regex> Regex::Compile(std::string_view pattern) {
  return RegexCompiler::Compile(MR_TRY(RegexParser(pattern).Parse()));
}

bool Regex::CharacterSet::Has(char32_t code) const {
  if (code < 128) return ascii[code];
  auto after = std::ranges::upper_bound(ranges, code, {}, &std::pair<char32_t, char32_t>::first);
  return after != ranges.begin() && std::prev(after)->second >= code;
}

std::size_t Regex::Find(std::string_view text, std::size_t from, std::size_t& begin) const {
  for (begin = from; begin < text.size();) {
    const DecodedCharacter character = DecodeUtf8(text.data() + begin, text.data() + text.size());
    if (begins_.Has(character.code)) {
      const std::size_t end = Match(0, text, begin);
      if (end != text.npos) return end;
    }
    begin += character.length;
  }
  return text.npos;
}

bool Regex::HasBefore(std::uint32_t set, std::string_view text, std::size_t at) const {
  if (at == 0) return false;
  std::size_t begin = at - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return sets_[set].Has(DecodeUtf8(text.data() + begin, text.data() + at).code);
}

std::size_t Regex::Match(std::uint32_t pc, std::string_view text, std::size_t at) const {
  std::vector<std::pair<std::uint32_t, std::size_t>> others;
  while (true) {
    const Instruction& one = program_[pc];
    bool goes_on = true;
    switch (one.op) {
      case Op::kMatch:
        return at;
      case Op::kSet: {
        if (at == text.size()) {
          goes_on = false;
          break;
        }
        const DecodedCharacter character = DecodeUtf8(text.data() + at, text.data() + text.size());
        goes_on = sets_[one.first].Has(character.code);
        at += character.length;
        ++pc;
        break;
      }
      case Op::kSplit:
        others.emplace_back(one.second, at);
        pc = one.first;
        break;
      case Op::kJump:
        pc = one.first;
        break;
      case Op::kLineBegin:
        goes_on = at == 0 || (text[at - 1] == '\n' && at < text.size());
        ++pc;
        break;
      case Op::kLineEnd:
        goes_on = at == text.size() || text[at] == '\n';
        ++pc;
        break;
      case Op::kTextEnd:
        goes_on = at == text.size();
        ++pc;
        break;
      case Op::kBehind:
        goes_on = HasBefore(one.first, text, at) == (one.second == 0);
        ++pc;
        break;
      case Op::kBoundary: {
        const bool word_follows =
            at < text.size() && sets_[one.first].Has(DecodeUtf8(text.data() + at, text.data() + text.size()).code);
        goes_on = (word_follows != HasBefore(one.first, text, at)) == (one.second == 0);
        ++pc;
        break;
      }
      case Op::kLook:
        goes_on = (Match(pc + 1, text, at) != text.npos) == (one.second == 0);
        pc = one.first;
        break;
      case Op::kAtomic: {
        const std::size_t end = Match(pc + 1, text, at);
        goes_on = end != text.npos;
        if (goes_on) at = end;
        pc = one.first;
        break;
      }
    }
    if (goes_on) continue;
    if (others.empty()) return text.npos;
    std::tie(pc, at) = others.back();
    others.pop_back();
  }
}

}  // namespace millrace::tokenizer
