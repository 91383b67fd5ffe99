#include "millrace/tokenizer/huggingface/hf_normalizer.h"

#include <algorithm>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/tokenizer/byte_level/byte_alphabet.h"
#include "millrace/tokenizer/unicode/unicode.h"
#include "millrace/tokenizer/unicode/utf8.h"
#include "millrace/tokenizer/wordpiece/bert.h"

namespace millrace::tokenizer {
namespace {

constexpr std::size_t kWholeCluster = 6;  // bytes; the library applies rules to whole clusters only below this length

std::string WithoutInvalid(std::string_view text) {
  std::string valid;
  for (const char *at = text.data(), *end = at + text.size(); at != end;) {
    const DecodedCharacter character = DecodeUtf8(at, end);
    AppendUtf8(character.code == kInvalid ? kReplacement : character.code, valid);
    at += character.length;
  }
  return valid;
}

/// Returns `text` with each character replaced by the text that map(code, to) appends.
template <class Map>
std::string MapCharacters(std::string_view text, Map map) {
  std::string out;
  out.reserve(text.size());
  for (const char *at = text.data(), *end = at + text.size(); at != end;) {
    const DecodedCharacter character = DecodeUtf8(at, end);
    map(character.code, out);
    at += character.length;
  }
  return out;
}

/// Returns the bytes of the first `count` characters.
std::size_t BytesOfFirst(std::string_view text, std::size_t count) {
  std::size_t at = 0;
  while (at < text.size() && count-- > 0) at += DecodeUtf8(text.data() + at, text.data() + text.size()).length;
  return at;
}

std::size_t CharactersIn(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char byte) { return (byte & 0xC0) != 0x80; }));
}

/// Returns the bytes of the white space at the start of `text`.
std::size_t SpaceLength(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const DecodedCharacter character = DecodeUtf8(text.data() + at, text.data() + text.size());
    if (character.code == kInvalid || !IsWhiteSpace(character.code)) break;
    at += character.length;
  }
  return at;
}

}  // namespace

HfNormalizer::HfNormalizer(std::vector<Step> steps) : steps_(std::move(steps)), bert_classes_(MakeBertClasses()) {
  for (std::size_t i = 0; i < kCombiningMarksCount; i += 2) {
    for (char32_t code = kCombiningMarks[i]; code <= kCombiningMarks[i + 1]; ++code) dropped_marks_.Set(code, "");
  }
  for (std::size_t i = 0; i < kBertLoweredCount;) {
    const std::uint32_t length = kBertLowered[i] & 7;
    std::string text;
    for (std::uint32_t part = 1; part <= length; ++part) AppendUtf8(kBertLowered[i + part], text);
    lower_case_.Set(kBertLowered[i] >> 3, std::move(text));
    i += 1 + length;
  }
}

void HfNormalizer::Normalize(std::string_view text, std::string& normalized) const {
  normalized = IsValidUtf8(text) ? std::string(text) : WithoutInvalid(text);
  for (const Step& step : steps_) {
    normalized = std::visit([&](const auto& one) { return Apply(one, std::move(normalized)); }, step);
  }
}

std::size_t HfNormalizer::NormalizeFirst(std::string_view text, std::string& normalized) const {
  normalized = IsValidUtf8(text) ? std::string(text) : WithoutInvalid(text);
  std::size_t head = BytesOfFirst(normalized, 1);
  for (const Step& step : steps_) {
    std::string before = normalized;
    normalized = std::visit([&](const auto& one) { return Apply(one, std::move(normalized)); }, step);
    if (head > 0) head = HeadAfter(step, before, head, normalized);
  }
  return head;
}

std::size_t HfNormalizer::HeadAfter(const Step& step, std::string_view before, std::size_t head,
                                    std::string_view after) const {
  if (const auto* strip = std::get_if<Strip>(&step)) {
    const std::size_t removed = strip->left ? SpaceLength(before) : 0;
    return std::min(after.size(), head > removed ? head - removed : 0);
  }
  if (const auto* prepend = std::get_if<Prepend>(&step)) return after.empty() ? 0 : head + prepend->text.size();
  if (const auto* precompiled = std::get_if<Precompiled>(&step)) return HeadAfter(*precompiled, before, head);
  // The library aligns a replacement with the last character of its match.
  std::size_t kept = 0, done = 0;
  bool within = true;
  auto edit = [&](std::size_t begin, std::size_t end, std::string_view to) {
    if (!within) return;
    kept += std::min(begin, head) - std::min(done, head);
    done = end;
    within = end <= head;
    if (within) kept += to.size();
  };
  if (const auto* literal = std::get_if<Replace>(&step)) {
    ForEachMatch(*literal, before, edit);
  } else if (const auto* regex = std::get_if<ReplaceMatches>(&step)) {
    ForEachMatch(*regex, before, edit);
  } else {
    const std::string alone =
        std::visit([&](const auto& one) { return Apply(one, std::string(before.substr(0, head))); }, step);
    return BytesOfFirst(after, CharactersIn(alone));
  }
  return within ? kept + head - std::min(done, head) : kept;
}

template <class Visit>
bool HfNormalizer::ForEachPart(const Precompiled& step, std::string_view text, Visit visit) const {
  std::string_view replacement;
  // No rule matches at a NUL, which ends strings in the library.
  auto replaces = [&](std::string_view part) { return part[0] != '\0' && step.map.Shortest(part, replacement) > 0; };
  while (!text.empty()) {
    // A printable ASCII character in front of another ASCII character is a cluster.
    const bool plain =
        text[0] >= ' ' && text[0] < '\x7f' && text.size() > 1 && static_cast<std::uint8_t>(text[1]) < 0x80;
    const std::string_view cluster = text.substr(0, plain ? 1 : graphemes_.Length(text));
    text.remove_prefix(cluster.size());
    if (cluster.size() < kWholeCluster && replaces(cluster)) {
      if (!visit(cluster, replacement)) return false;
      continue;
    }
    for (std::size_t at = 0; at < cluster.size();) {
      const std::size_t length = DecodeUtf8(cluster.data() + at, cluster.data() + cluster.size()).length;
      const std::string_view character = cluster.substr(at, length);
      if (!visit(character, replaces(character) ? replacement : character)) return false;
      at += length;
    }
  }
  return true;
}

std::size_t HfNormalizer::HeadAfter(const Precompiled& step, std::string_view before, std::size_t head) const {
  // The library aligns the n-th character of a replacement with the n-th character of the match. If the replacement is
  // longer, its last characters are aligned with the character in front of the match. If it is shorter, its last
  // character is aligned with the rest of the match. Characters dropped at the beginning of the text do not count.
  struct Change {
    std::size_t bytes;
    std::ptrdiff_t more;  ///< characters of the replacement minus those of the match
  };
  std::vector<Change> changes;  // of the latest part
  std::size_t at = 0, kept = 0;
  auto keep = [&] {
    for (const Change& change : std::exchange(changes, {})) {
      const std::size_t aligned = change.more > 0 && at > 0 ? at - 1 : at;
      if (aligned >= head) return false;
      kept += change.bytes;
      if (change.more <= 0) at += BytesOfFirst(before.substr(at), static_cast<std::size_t>(1 - change.more));
    }
    return true;
  };
  const bool all = ForEachPart(step, before, [&](std::string_view from, std::string_view to) {
    if (!to.empty() && !keep()) return false;
    const auto old_count = static_cast<std::ptrdiff_t>(CharactersIn(from));
    std::ptrdiff_t count = 0;
    for (std::size_t length; !to.empty(); to.remove_prefix(length)) {
      length = BytesOfFirst(to, 1);
      changes.push_back({length, ++count > old_count ? 1 : 0});
    }
    if (count < old_count && !changes.empty()) changes.back().more += count - old_count;
    return true;
  });
  if (all) keep();
  return kept;
}

std::string HfNormalizer::Apply(const Precompiled& step, std::string text) const {
  std::string out;
  out.reserve(text.size());
  ForEachPart(step, text, [&](std::string_view, std::string_view to) {
    out += to;
    return true;
  });
  return out;
}

template <class Edit>
void HfNormalizer::ForEachMatch(const Replace& step, std::string_view text, Edit edit) {
  for (std::size_t at = 0; (at = text.find(step.from, at)) != text.npos; at += step.from.size()) {
    edit(at, at + step.from.size(), step.to);
  }
}

template <class Edit>
void HfNormalizer::ForEachMatch(const ReplaceMatches& step, std::string_view text, Edit edit) {
  step.regex.ForEach(text, [&](std::size_t begin, std::size_t end) {
    edit(begin, end, step.to);
    return true;
  });
}

std::string HfNormalizer::Apply(const Replace& step, std::string text) const {
  std::string out;
  std::size_t done = 0;
  ForEachMatch(step, text, [&](std::size_t begin, std::size_t end, std::string_view to) {
    out.append(text, done, begin - done) += to;
    done = end;
  });
  return out.append(text, done);
}

std::string HfNormalizer::Apply(const ReplaceMatches& step, std::string text) const {
  std::string out;
  std::size_t done = 0;
  ForEachMatch(step, text, [&](std::size_t begin, std::size_t end, std::string_view to) {
    out.append(text, done, begin - done) += to;
    done = end;
  });
  return out.append(text, done);
}

std::string HfNormalizer::Apply(const Prepend& step, std::string text) const {
  return text.empty() ? text : step.text + text;
}

std::string HfNormalizer::Apply(const Nmt&, std::string text) const {
  return MapCharacters(text, [](char32_t code, std::string& to) {
    if ((code >= 1 && code <= 8) || code == 0xB || (code >= 0xE && code <= 0x1F) || code == 0x7F || code == 0x8F ||
        code == 0x9F) {
      return;
    }
    const bool blank = code == 9 || code == 0xA || code == 0xC || code == 0xD || code == 0x1680 ||
                       (code >= 0x200B && code <= 0x200F) || code == 0x2028 || code == 0x2029 || code == 0x2581 ||
                       code == 0xFEFF || code == 0xFFFD;
    AppendUtf8(blank ? U' ' : code, to);
  });
}

std::string HfNormalizer::Apply(const BertClean&, std::string text) const {
  return MapCharacters(text, [&](char32_t code, std::string& to) {
    const std::uint8_t bits = bert_classes_[code];
    if ((bits & kBertRemoved) == 0) AppendUtf8((bits & kBertSpace) != 0 ? U' ' : code, to);
  });
}

std::string HfNormalizer::Apply(const BertChinese&, std::string text) const {
  return MapCharacters(text, [&](char32_t code, std::string& to) {
    const bool alone = (bert_classes_[code] & kBertChinese) != 0;
    if (alone) to += ' ';
    AppendUtf8(code, to);
    if (alone) to += ' ';
  });
}

std::string HfNormalizer::Apply(const BertAccents&, std::string text) const {
  return MapCharacters(text, [&](char32_t code, std::string& to) {
    if ((bert_classes_[code] & kBertStripped) == 0) AppendUtf8(code, to);
  });
}

std::string HfNormalizer::Apply(const ToByteAlphabet&, std::string text) const {
  std::string out;
  TheByteAlphabet().Append(text, out);
  return out;
}

std::string HfNormalizer::Apply(const Compose&, std::string text) const {
  std::string buffer;
  return std::string(nfkc_.nfc().Normalize(text, buffer));
}

std::string HfNormalizer::Apply(const ComposeCompatible&, std::string text) const {
  std::string buffer;
  return std::string(nfkc_.Normalize(text, buffer));
}

std::string HfNormalizer::Apply(const Decompose&, std::string text) const {
  std::string apart;
  nfkc_.nfc().Decompose(text, apart);
  return apart;
}

std::string HfNormalizer::Apply(const DecomposeCompatible&, std::string text) const {
  std::string apart;
  nfkc_.Decompose(text, apart);
  return apart;
}

std::string HfNormalizer::Apply(const StripAccents&, std::string text) const {
  std::string without;
  return dropped_marks_.Replace(text, without) ? without : text;
}

std::string HfNormalizer::Apply(const Lowercase&, std::string text) const {
  std::string lower;
  return lower_case_.Replace(text, lower) ? lower : text;
}

std::string HfNormalizer::Apply(const Strip& step, std::string text) const {
  std::string_view rest = text;
  if (step.left) rest.remove_prefix(SpaceLength(rest));
  std::size_t end = rest.size();
  for (std::size_t at = end; step.right && at > 0;) {
    do {
      --at;
    } while (at > 0 && (static_cast<std::uint8_t>(rest[at]) & 0xC0) == 0x80);
    if (!IsWhiteSpace(DecodeUtf8(rest.data() + at, rest.data() + end).code)) break;
    end = at;
  }
  return std::string(rest.substr(0, end));
}

}  // namespace millrace::tokenizer
