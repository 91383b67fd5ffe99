#include "millrace/tokenizer/hf_normalizer.h"

#include "millrace/base/text.h"
#include "millrace/tokenizer/bert.h"
#include "millrace/tokenizer/unicode.h"
#include "millrace/tokenizer/utf8.h"

namespace millrace::tokenizer {
namespace {

constexpr std::size_t kWholeCluster = 6;  // bytes, from which on rules are for characters alone

std::string WithoutInvalid(std::string_view text) {
  std::string valid;
  for (const char *at = text.data(), *end = at + text.size(); at != end;) {
    const Decoded character = DecodeUtf8(at, end);
    AppendUtf8(character.code == kInvalid ? kReplacement : character.code, valid);
    at += character.length;
  }
  return valid;
}

/// Bytes of the white space that `text` begins with.
std::size_t SpaceLength(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Decoded character = DecodeUtf8(text.data() + at, text.data() + text.size());
    if (character.code == kInvalid || !IsWhiteSpace(character.code)) break;
    at += character.length;
  }
  return at;
}

}  // namespace

HfNormalizer::HfNormalizer(std::vector<Step> steps) : steps_(std::move(steps)) {
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

std::string HfNormalizer::Apply(const Precompiled& step, std::string text) const {
  std::string out;
  out.reserve(text.size());
  std::string_view rest = text, replacement;
  while (!rest.empty()) {
    // Printable ASCII in front of ASCII is a cluster of its own.
    const bool plain =
        rest[0] >= ' ' && rest[0] < '\x7f' && rest.size() > 1 && static_cast<std::uint8_t>(rest[1]) < 0x80;
    const std::string_view cluster = rest.substr(0, plain ? 1 : graphemes_.Length(rest));
    rest.remove_prefix(cluster.size());
    // A rule never begins with a NUL: there the library stops looking.
    if (cluster.size() < kWholeCluster && cluster[0] != '\0' && step.map.Shortest(cluster, replacement) > 0) {
      out += replacement;
      continue;
    }
    for (std::size_t at = 0; at < cluster.size();) {
      const std::size_t length = DecodeUtf8(cluster.data() + at, cluster.data() + cluster.size()).length;
      const std::string_view character = cluster.substr(at, length);
      out += character[0] != '\0' && step.map.Shortest(character, replacement) > 0 ? replacement : character;
      at += length;
    }
  }
  return out;
}

std::string HfNormalizer::Apply(const Replace& step, std::string text) const {
  std::string out;
  std::string_view rest = text;
  for (std::size_t at; (at = rest.find(step.from)) != rest.npos;) {
    out.append(rest, 0, at) += step.to;
    rest.remove_prefix(at + step.from.size());
  }
  return out.append(rest);
}

std::string HfNormalizer::Apply(const ReplaceSpaces& step, std::string text) const {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_not_of(' ', at), text.size());
    if (end - at >= step.least) {
      out += step.to;
    } else {
      out.append(text, at, end - at);
    }
    at = end;
    const std::size_t next = std::min(text.find(' ', at), text.size());
    out.append(text, at, next - at);
    at = next;
  }
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
