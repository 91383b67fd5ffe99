#include "millrace/tokenizer/huggingface/hf_decoder.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/tokenizer/byte_level/byte_alphabet.h"
#include "millrace/tokenizer/unicode/utf8.h"
#include "millrace/tokenizer/wordpiece/text_cleanup.h"

namespace millrace::tokenizer::hf {
namespace {

constexpr std::string_view kReplacementBytes = "\xEF\xBF\xBD";

/// "<0x0A>" → 10.
std::optional<char> ByteOfToken(std::string_view token) {
  std::uint8_t value = 0;
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const char* digits = token.data() + (token[3] == '+' ? 4 : 3);  // the library takes a sign
  auto [end, error] = std::from_chars(digits, token.data() + 5, value, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

std::string Joined(const std::vector<std::string>& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  return all;
}

std::string BytesOf(const std::vector<std::string>& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += TheByteAlphabet().ToBytes(token).value_or(token);
  return bytes;
}

}  // namespace

Result<TokenDecoder> TokenDecoder::Read(const Json& decoder) {
  TokenDecoder made;
  if (decoder.is_null()) made.steps_.emplace_back(Spaced{});
  for (const Json& json : Steps(decoder, "decoders")) made.steps_.push_back(MR_TRY(ReadStep(json)));
  auto alone = [](const Step& step) {
    return std::holds_alternative<Replace>(step) || std::holds_alternative<ReplaceMatches>(step) ||
           std::holds_alternative<Strip>(step) || std::holds_alternative<Metaspace>(step) ||
           std::holds_alternative<WordPiece>(step) || std::holds_alternative<Spaced>(step);
  };
  const bool only_bytes = made.steps_.size() == 1 && std::holds_alternative<Bytes>(made.steps_[0]);
  made.goes_by_token_ = only_bytes || std::ranges::all_of(made.steps_, alone);
  return made;
}

Result<TokenDecoder::Step> TokenDecoder::ReadReplace(const Json& json) {
  const Json& pattern = Member(json, "pattern");
  const std::string literal = StringMember(pattern, "String"), regex = StringMember(pattern, "Regex"),
                    to = StringMember(json, "content");
  if (!literal.empty()) return Replace{literal, to};
  if (!regex.empty()) return ReplaceMatches{MR_TRY(Regex::Compile(regex)), to};
  return Unsupported("decoder", json);
}

Result<TokenDecoder::Step> TokenDecoder::ReadStep(const Json& json) {
  const std::string type = StringMember(json, "type");
  if (type == "Replace") return ReadReplace(json);
  if (type == "ByteLevel") return Bytes{};
  if (type == "ByteFallback") return ByteFallback{};
  if (type == "Fuse") return Fuse{};
  if (type == "BPEDecoder") {
    const std::string suffix = StringMember(json, "suffix");
    if (suffix.empty()) return Unsupported("decoder", json);
    return EndOfWord{suffix};
  }
  if (type == "WordPiece") return WordPiece{StringMember(json, "prefix"), BoolMember(json, "cleanup", true)};
  if (type == "CTC") {
    const std::string pad = StringMember(json, "pad_token"), delimiter = StringMember(json, "word_delimiter_token");
    if (pad.empty() || delimiter.empty()) return Unsupported("decoder", json);
    return Ctc{pad, delimiter, BoolMember(json, "cleanup", true)};
  }
  if (type == "Strip") {
    const Json &start = Member(json, "start"), &stop = Member(json, "stop");
    if (!start.is_number_unsigned() || !stop.is_number_unsigned()) return Unsupported("decoder", json);
    return Strip{StringMember(json, "content"), start.get<std::size_t>(), stop.get<std::size_t>()};
  }
  if (type == "Metaspace") {
    const std::string scheme = StringMember(json, "prepend_scheme");
    const bool never = scheme.empty() ? !BoolMember(json, "add_prefix_space", true) : scheme == "never";
    return Metaspace{StringMember(json, "replacement"), !never};
  }
  return Unsupported("decoder", json);
}

std::string TokenDecoder::Decode(std::vector<std::string> tokens) const {
  if (tokens.empty()) return "";
  if (steps_.size() == 1 && std::holds_alternative<Bytes>(steps_[0])) return BytesOf(tokens);
  for (const Step& step : steps_) {
    tokens = std::visit([&](const auto& one) { return Apply(one, std::move(tokens)); }, step);
  }
  return Joined(tokens);
}

std::string TokenDecoder::DecodeOne(std::string token, bool first) const {
  Tokens tokens = {std::move(token)};
  if (steps_.size() == 1 && std::holds_alternative<Bytes>(steps_[0])) return BytesOf(tokens);
  for (const Step& step : steps_) {
    tokens = std::visit(
        [&](const auto& one) {
          if constexpr (requires { Apply(one, std::move(tokens), first); })
            return Apply(one, std::move(tokens), first);
          else
            return Apply(one, std::move(tokens));
        },
        step);
  }
  return Joined(tokens);
}

TokenDecoder::Tokens TokenDecoder::Apply(const Replace& step, Tokens tokens) {
  for (std::string& token : tokens) token = ReplaceAll(std::move(token), step.from, step.to);
  return tokens;
}

TokenDecoder::Tokens TokenDecoder::Apply(const ReplaceMatches& step, Tokens tokens) {
  for (std::string& token : tokens) {
    std::string out;
    std::size_t done = 0;
    step.regex.ForEach(token, [&](std::size_t begin, std::size_t end) {
      out.append(token, done, begin - done) += step.to;
      done = end;
      return true;
    });
    token = out.append(token, done);
  }
  return tokens;
}

TokenDecoder::Tokens TokenDecoder::Apply(const Bytes&, Tokens tokens) {
  const std::string bytes = BytesOf(tokens);
  std::string text;
  for (std::string_view rest = bytes; !rest.empty();) {
    const DecodedCharacter character = DecodeUtf8(rest.data(), rest.data() + rest.size());
    std::size_t length = character.length;
    if (character.code != kInvalid) {
      text += rest.substr(0, length);
    } else {
      // As Rust: one U+FFFD for the longest beginning of a character.
      while (length < rest.size() && MayBecomeWhole(rest.substr(0, length + 1))) ++length;
      text += kReplacementBytes;
    }
    rest.remove_prefix(length);
  }
  return {text};
}

TokenDecoder::Tokens TokenDecoder::Apply(const ByteFallback&, Tokens tokens) {
  Tokens made;
  std::string bytes;
  auto flush = [&] {
    if (!bytes.empty() && IsValidUtf8(bytes)) made.push_back(bytes);
    for (std::size_t i = 0; !IsValidUtf8(bytes) && i < bytes.size(); ++i) made.emplace_back(kReplacementBytes);
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = ByteOfToken(token)) {
      bytes += *byte;
      continue;
    }
    flush();
    made.push_back(std::move(token));
  }
  flush();
  return made;
}

TokenDecoder::Tokens TokenDecoder::Apply(const Fuse&, Tokens tokens) { return {Joined(tokens)}; }

TokenDecoder::Tokens TokenDecoder::Apply(const Strip& step, Tokens tokens) {
  for (std::string& token : tokens) {
    std::string_view rest = token;
    for (std::size_t i = 0; i < step.start && !step.content.empty() && rest.starts_with(step.content); ++i) {
      rest.remove_prefix(step.content.size());
    }
    for (std::size_t i = 0; i < step.stop && !step.content.empty() && rest.ends_with(step.content); ++i) {
      rest.remove_suffix(step.content.size());
    }
    token = std::string(rest);
  }
  return tokens;
}

TokenDecoder::Tokens TokenDecoder::Apply(const Metaspace& step, Tokens tokens, bool first) {
  for (std::string& token : tokens) {
    const bool strips = std::exchange(first, false) && step.strips;
    token = ReplaceAll(std::move(token), step.replacement, strips ? "" : " ");
  }
  return tokens;
}

TokenDecoder::Tokens TokenDecoder::Apply(const WordPiece& step, Tokens tokens, bool first) {
  for (std::string& token : tokens) {
    if (!std::exchange(first, false)) {
      token = token.starts_with(step.prefix) ? token.substr(step.prefix.size()) : " " + token;
    }
    if (step.cleanup) token = CleanUpSpaces(std::move(token));
  }
  return tokens;
}

TokenDecoder::Tokens TokenDecoder::Apply(const EndOfWord& step, Tokens tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = ReplaceAll(std::move(tokens[i]), step.suffix, i + 1 == tokens.size() ? "" : " ");
  }
  return tokens;
}

TokenDecoder::Tokens TokenDecoder::Apply(const Spaced&, Tokens tokens, bool first) {
  for (std::string& token : tokens) {
    if (!std::exchange(first, false)) token = " " + token;
  }
  return tokens;
}

TokenDecoder::Tokens TokenDecoder::Apply(const Ctc& step, Tokens tokens) {
  const auto repeated = std::ranges::unique(tokens);
  tokens.erase(repeated.begin(), repeated.end());
  Tokens made;
  for (std::string& token : tokens) {
    std::string text = ReplaceAll(std::move(token), step.pad, "");
    if (step.cleanup) text = ReplaceAll(CleanUpSpaces(std::move(text)), step.word_delimiter, " ");
    if (!text.empty()) made.push_back(std::move(text));
  }
  return made;
}

}  // namespace millrace::tokenizer::hf
