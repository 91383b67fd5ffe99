#include "millrace/tokenizer/huggingface/hf_pre_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "millrace/tokenizer/byte_level/byte_alphabet.h"
#include "millrace/tokenizer/unicode/unicode.h"
#include "millrace/tokenizer/unicode/utf8.h"
#include "millrace/tokenizer/wordpiece/bert.h"

namespace millrace::tokenizer {
namespace {

using Behavior = HfPreTokenizer::Behavior;

/// Passes on the matches in a text and the ranges between them, merged or left out as a Behavior says. For one text.
class MatchMerger {
 public:
  MatchMerger(HfTextSlice stretch, Behavior behavior, bool invert, HfTextSliceVisitor next)
      : stretch_(stretch), behavior_(behavior), invert_(invert), next_(next) {}

  /// Takes the next match. Matches come in order. Returns false to stop.
  bool Match(std::size_t begin, std::size_t end) {
    if (done_ < begin && !Add({done_, begin, invert_})) return false;
    done_ = end;
    return Add({begin, end, !invert_});
  }
  bool Finish() {
    if (done_ < stretch_.text.size() && !Add({done_, stretch_.text.size(), invert_})) return false;
    return !held_ || Emit(*held_);
  }

 private:
  struct MatchRange {
    std::size_t begin, end;
    bool matches;
  };

  bool Emit(MatchRange range) const {
    return range.begin == range.end || next_(stretch_.Slice(range.begin, range.end));
  }

  bool Add(MatchRange range) {
    const bool after_match = std::exchange(last_matches_, range.matches);
    switch (behavior_) {
      case Behavior::kRemoved:
        return range.matches || Emit(range);
      case Behavior::kIsolated:
        return Emit(range);
      case Behavior::kContiguous:
        if (held_ && range.matches == after_match) return Extend(range);
        break;
      case Behavior::kMergedWithPrevious:
        if (held_ && range.matches && !after_match) return Extend(range);
        break;
      case Behavior::kMergedWithNext:
        if (held_ && held_->matches && !range.matches) {
          held_ = MatchRange{held_->begin, range.end, false};
          return true;
        }
        break;
    }
    const auto before = std::exchange(held_, range);
    return !before || Emit(*before);
  }

  bool Extend(MatchRange range) {
    held_->end = range.end;
    return true;
  }

  const HfTextSlice stretch_;
  const Behavior behavior_;
  const bool invert_;
  const HfTextSliceVisitor next_;
  std::size_t done_ = 0;
  std::optional<MatchRange> held_;
  bool last_matches_ = false;
};

DecodedCharacter CharacterAt(std::string_view text, std::size_t at) {
  return DecodeUtf8(text.data() + at, text.data() + text.size());
}

}  // namespace

HfPreTokenizer::HfPreTokenizer(std::vector<Step> steps)
    : steps_(std::move(steps)), gpt2_(SplitPattern::kGpt2), kinds_(0) {
  CodePointMap<std::uint8_t> words(0);
  FillWordCharacters(words);
  const auto bert = MakeBertClasses();
  const auto classes = MakeCharClasses();
  auto bits = [&](char32_t code) {
    std::uint8_t kind = 0;
    if (code <= 0x3000 && IsWhiteSpace(code)) kind |= static_cast<std::uint8_t>(CharacterKind::kWhiteSpace);
    if ((bert[code] & kBertPunctuation) != 0) kind |= static_cast<std::uint8_t>(CharacterKind::kPunctuation);
    if ((classes[code] & kNumber) != 0 || IsUnicode17Number(code))
      kind |= static_cast<std::uint8_t>(CharacterKind::kNumber);
    if (words[code] != 0) kind |= static_cast<std::uint8_t>(CharacterKind::kWord);
    return kind;
  };
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (const std::uint8_t kind = bits(code); kind != 0) kinds_.At(code) = kind;
  }
  for (const Step& step : steps_) {
    const auto* metaspace = std::get_if<Metaspace>(&step);
    if (metaspace && metaspace->prefix == Prefix::kFirst) asks_for_head_ = true;
  }
}

void HfPreTokenizer::ForEachWord(HfTextSlice text, HfTextSliceVisitor visit) const {
  if (text.text.empty()) return;
  Buffers buffers(steps_.size());
  Take(0, text, buffers, visit);
}

bool HfPreTokenizer::Take(std::size_t step, HfTextSlice stretch, Buffers& buffers, HfTextSliceVisitor visit) const {
  if (step == steps_.size()) return visit(stretch);
  auto next = [&](HfTextSlice part) { return Take(step + 1, part, buffers, visit); };
  return std::visit([&](const auto& one) { return Run(one, stretch, buffers[step], HfTextSliceVisitor(next)); },
                    steps_[step]);
}

bool HfPreTokenizer::Run(const AtCharacters& step, HfTextSlice stretch, std::string&, HfTextSliceVisitor next) const {
  MatchMerger pieces(stretch, step.behavior, false, next);
  for (std::size_t at = 0; at < stretch.text.size();) {
    const DecodedCharacter character = CharacterAt(stretch.text, at);
    const bool matches = (kinds_[character.code] & static_cast<std::uint8_t>(step.kind)) != 0;
    if (matches && !pieces.Match(at, at + character.length)) return false;
    at += character.length;
  }
  return pieces.Finish();
}

bool HfPreTokenizer::Run(const WordRuns&, HfTextSlice stretch, std::string&, HfTextSliceVisitor next) const {
  constexpr auto kSeparate =
      static_cast<std::uint8_t>(CharacterKind::kWhiteSpace) | static_cast<std::uint8_t>(CharacterKind::kWord);
  const std::string_view text = stretch.text;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto kind = static_cast<std::uint8_t>(kinds_[CharacterAt(text, begin).code] & kSeparate);
    std::size_t end = begin;
    while (end < text.size()) {
      const DecodedCharacter character = CharacterAt(text, end);
      if (static_cast<std::uint8_t>(kinds_[character.code] & kSeparate) != kind) break;
      end += character.length;
    }
    const bool blank = kind == static_cast<std::uint8_t>(CharacterKind::kWhiteSpace);
    if (!blank && !next(stretch.Slice(begin, end))) return false;
    begin = end;
  }
  return true;
}

bool HfPreTokenizer::Run(const AtText& step, HfTextSlice stretch, std::string&, HfTextSliceVisitor next) const {
  MatchMerger pieces(stretch, step.behavior, step.invert, next);
  for (std::size_t at = 0; (at = stretch.text.find(step.text, at)) != std::string_view::npos;) {
    if (!pieces.Match(at, at + step.text.size())) return false;
    at += step.text.size();
  }
  return pieces.Finish();
}

bool HfPreTokenizer::Run(const AtPattern& step, HfTextSlice stretch, std::string&, HfTextSliceVisitor next) const {
  MatchMerger pieces(stretch, step.behavior, step.invert, next);
  const char *begin = stretch.text.data(), *end = begin + stretch.text.size();
  for (const char* at = begin; at != end;) {
    const char* after = step.splitter.WordEnd(at, end);
    if (!pieces.Match(static_cast<std::size_t>(at - begin), static_cast<std::size_t>(after - begin))) return false;
    at = after;
  }
  return pieces.Finish();
}

bool HfPreTokenizer::Run(const AtRegex& step, HfTextSlice stretch, std::string&, HfTextSliceVisitor next) const {
  MatchMerger pieces(stretch, step.behavior, step.invert, next);
  bool more = true;
  step.regex.ForEach(stretch.text, [&](std::size_t begin, std::size_t end) {
    more = more && pieces.Match(begin, end);
    return more;
  });
  return more && pieces.Finish();
}

bool HfPreTokenizer::Run(const Metaspace& step, HfTextSlice stretch, std::string& buffer,
                         HfTextSliceVisitor next) const {
  buffer.clear();
  const bool begins = stretch.text.starts_with(' ') || stretch.text.starts_with(step.replacement);
  const bool wanted = step.prefix == Prefix::kAlways || (step.prefix == Prefix::kFirst && stretch.head > 0);
  if (wanted && !begins) buffer += step.replacement;
  std::size_t head = stretch.head > 0 ? buffer.size() + stretch.head : 0;
  for (std::size_t at = 0; at < stretch.text.size();) {
    const std::size_t space = std::min(stretch.text.find(' ', at), stretch.text.size());
    buffer.append(stretch.text, at, space - at);
    if (space == stretch.text.size()) break;
    buffer += step.replacement;
    if (space < stretch.head) head += step.replacement.size() - 1;
    at = space + 1;
  }
  const HfTextSlice marked{buffer, head};
  if (!step.split) return next(marked);
  for (std::size_t begin = 0; begin < buffer.size();) {
    const std::size_t end = std::min(buffer.find(step.replacement, begin + 1), buffer.size());
    if (!next(marked.Slice(begin, end))) return false;
    begin = end;
  }
  return true;
}

bool HfPreTokenizer::Run(const ByteLevel& step, HfTextSlice stretch, std::string& buffer,
                         HfTextSliceVisitor next) const {
  std::string spaced;
  if (step.add_prefix_space && !stretch.text.starts_with(' ')) {
    spaced.assign(1, ' ').append(stretch.text);
    stretch = {spaced, stretch.head > 0 ? stretch.head + 1 : 0};
  }
  const char *begin = stretch.text.data(), *end = begin + stretch.text.size();
  for (const char* at = begin; at != end;) {
    const char* after = step.use_regex ? gpt2_.WordEnd(at, end) : end;
    buffer.clear();
    const bool at_head = static_cast<std::size_t>(at - begin) < stretch.head;
    TheByteAlphabet().Append({at, after}, buffer);
    if (!next({buffer, at_head ? buffer.size() : 0})) return false;
    at = after;
  }
  return true;
}

bool HfPreTokenizer::Run(const FixedLength& step, HfTextSlice stretch, std::string&, HfTextSliceVisitor next) const {
  const std::string_view text = stretch.text;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = begin;
    for (std::size_t i = 0; i < step.characters && end < text.size(); ++i) end += CharacterAt(text, end).length;
    if (!next(stretch.Slice(begin, end))) return false;
    begin = end;
  }
  return true;
}

}  // namespace millrace::tokenizer
