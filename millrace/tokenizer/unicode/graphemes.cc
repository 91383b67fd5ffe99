#include "millrace/tokenizer/unicode/graphemes.h"

#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {
namespace {

constexpr char32_t kFirstHangul = 0xAC00, kHangul = 11172, kHangulEndings = 28;

bool Extends(Grapheme kind) {
  return kind == Grapheme::kLinker || kind == Grapheme::kExtend || kind == Grapheme::kLoneExtend ||
         kind == Grapheme::kJoiner;
}

}  // namespace

/// The state of the rules, from the characters in front of a position.
struct Graphemes::Context {
  Grapheme last = Grapheme::kOther;
  bool odd_regions = false;  ///< an odd number of regional indicators ends there
  bool picture = false;      ///< a picture, and nothing but what extends it
  bool joined = false;       ///< … up to a joiner, which is the last character
  bool consonant = false;    ///< an Indic consonant, and nothing but what may stand in a conjunct
  bool linked = false;       ///< … a linker among it

  void Add(Grapheme kind) {
    odd_regions = kind == Grapheme::kRegion && !odd_regions;
    joined = picture && kind == Grapheme::kJoiner;
    picture = kind == Grapheme::kPicture || (picture && Extends(kind) && kind != Grapheme::kJoiner);
    const bool within = kind == Grapheme::kLinker || kind == Grapheme::kExtend || kind == Grapheme::kJoiner;
    linked = consonant && within && (linked || kind == Grapheme::kLinker);
    consonant = kind == Grapheme::kConsonant || (consonant && within);
    last = kind;
  }
};

Graphemes::Graphemes() : kinds_(Grapheme::kOther) {
  for (std::size_t i = 0; i < kGraphemeRangesCount; ++i) {
    const char32_t end = i + 1 < kGraphemeRangesCount ? kGraphemeRanges[i + 1] >> 5 : 0x110000;
    const auto kind = static_cast<Grapheme>(kGraphemeRanges[i] & 31);
    if (kind != Grapheme::kOther) kinds_.Fill(kGraphemeRanges[i] >> 5, end, kind);
  }
}

Grapheme Graphemes::KindOf(char32_t code) const {
  if (code - kFirstHangul < kHangul) {
    return (code - kFirstHangul) % kHangulEndings == 0 ? Grapheme::kOpenSyllable : Grapheme::kClosedSyllable;
  }
  return kinds_[code];
}

bool Graphemes::Joins(const Context& before, Grapheme next) {
  const Grapheme last = before.last;
  if (last == Grapheme::kControl || next == Grapheme::kControl) return false;
  if (Extends(next) || next == Grapheme::kSpacing || last == Grapheme::kPrepend) return true;
  switch (next) {
    case Grapheme::kLeading:
    case Grapheme::kOpenSyllable:
    case Grapheme::kClosedSyllable:
      return last == Grapheme::kLeading;
    case Grapheme::kVowel:
      return last == Grapheme::kLeading || last == Grapheme::kVowel || last == Grapheme::kOpenSyllable;
    case Grapheme::kTrailing:
      return last == Grapheme::kVowel || last == Grapheme::kTrailing || last == Grapheme::kOpenSyllable ||
             last == Grapheme::kClosedSyllable;
    case Grapheme::kRegion:
      return before.odd_regions;
    case Grapheme::kPicture:
      return before.joined;
    case Grapheme::kConsonant:
      return before.linked;
    default:
      return false;
  }
}

std::size_t Graphemes::Length(std::string_view text) const {
  const char *at = text.data(), *end = at + text.size();
  const DecodedCharacter first = DecodeUtf8(at, end);
  at += first.length;
  if (first.code == kInvalid) return first.length;
  if (first.code == '\r' && at != end && *at == '\n') return 2;
  Context context;
  context.Add(KindOf(first.code));
  while (at != end) {
    const DecodedCharacter next = DecodeUtf8(at, end);
    if (next.code == kInvalid) break;
    const Grapheme kind = KindOf(next.code);
    if (!Joins(context, kind)) break;
    context.Add(kind);
    at += next.length;
  }
  return static_cast<std::size_t>(at - text.data());
}

}  // namespace millrace::tokenizer
