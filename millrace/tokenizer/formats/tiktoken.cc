#include "millrace/tokenizer/formats/tiktoken.h"

#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"
#include "millrace/tokenizer/byte_level/byte_bpe.h"

namespace millrace::tokenizer {
namespace {

constexpr TokenId kMaxRank = 1 << 22;  // as hf::kMaxVocabulary

struct Line {
  std::string token;
  TokenId rank = kNoToken;
};

std::optional<Line> ParseLine(std::string_view line) {
  std::size_t space = line.find(' ');
  if (space == line.npos) return std::nullopt;
  auto token = Base64Decode(line.substr(0, space));
  std::string_view number = line.substr(space + 1);
  Line parsed;
  auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), parsed.rank);
  if (!token || token->empty() || error != std::errc() || end != number.data() + number.size()) return std::nullopt;
  if (parsed.rank < 0 || parsed.rank > kMaxRank) return std::nullopt;
  parsed.token = AsText(*token);
  return parsed;
}

std::string_view FirstLine(std::string_view text) {
  std::string_view line = text.substr(0, text.find('\n'));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

/// A published vocabulary, known by the number of its ranks.
struct Known {
  std::size_t ranks;
  SplitPattern pattern;
  std::string_view name;
};
constexpr Known kKnown[] = {{50'256, SplitPattern::kGpt2, "r50k"},      {50'280, SplitPattern::kGpt2, "p50k"},
                            {100'256, SplitPattern::kCl100k, "cl100k"}, {128'000, SplitPattern::kLlama3, "llama3"},
                            {151'643, SplitPattern::kQwen2, "qwen"},    {199'998, SplitPattern::kO200k, "o200k"}};

/// The names that a pattern goes by, in options and in names of files.
constexpr std::pair<std::string_view, SplitPattern> kPatternNames[] = {
    {"gpt2", SplitPattern::kGpt2},     {"r50k", SplitPattern::kGpt2},     {"p50k", SplitPattern::kGpt2},
    {"cl100k", SplitPattern::kCl100k}, {"llama3", SplitPattern::kLlama3}, {"llama-3", SplitPattern::kLlama3},
    {"qwen", SplitPattern::kQwen2},    {"o200k", SplitPattern::kO200k}};
constexpr std::string_view kKnownNames = "gpt2, cl100k, llama3, qwen and o200k";

Result<SplitPattern> PatternOf(const Known* known, std::string_view name, std::string_view wanted) {
  for (auto [spelling, pattern] : kPatternNames) {
    if (wanted == spelling) return pattern;
  }
  if (!wanted.empty()) {
    return Fail(Code::kUnsupported, "no pattern \"{}\"; known are {}", wanted, kKnownNames);
  }
  if (known) return known->pattern;
  std::string file = ToLower(name.substr(name.rfind('/') + 1));
  for (auto [spelling, pattern] : kPatternNames) {
    if (file.find(spelling) != file.npos) return pattern;
  }
  return Fail(Code::kUnsupported,
              "a file of ranks does not say how text is split; put the name of a pattern into the file's name, as in "
              "ranks.cl100k.tiktoken (known are {})",
              kKnownNames);
}

void AddLlama3Specials(ByteBpeSpec& spec) {
  TokenId id = 128'000;
  int reserved = 0;
  auto add = [&](std::string text) { spec.added.push_back({.text = std::move(text), .id = id++}); };
  for (std::string_view text :
       {"begin_of_text", "end_of_text", "", "", "", "", "start_header_id", "end_header_id", "", "eot_id"}) {
    add(text.empty() ? fmt::format("<|reserved_special_token_{}|>", reserved++) : fmt::format("<|{}|>", text));
  }
  while (id < 128'256) add(fmt::format("<|reserved_special_token_{}|>", reserved++));
  spec.named.bos = 128'000;
  spec.named.eos = 128'001;
}

void AddKnownSpecials(std::string_view known, ByteBpeSpec& spec) {
  auto add = [&](std::initializer_list<std::pair<std::string_view, TokenId>> specials) {
    for (auto [text, id] : specials) spec.added.push_back({.text = std::string(text), .id = id});
  };
  if (known == "r50k" || known == "p50k") add({{"<|endoftext|>", 50'256}});
  if (known == "qwen") add({{"<|endoftext|>", 151'643}, {"<|im_start|>", 151'644}, {"<|im_end|>", 151'645}});
  if (known == "o200k") add({{"<|endoftext|>", 199'999}, {"<|endofprompt|>", 200'018}});
  if (known == "cl100k") {
    add({{"<|endoftext|>", 100'257},
         {"<|fim_prefix|>", 100'258},
         {"<|fim_middle|>", 100'259},
         {"<|fim_suffix|>", 100'260},
         {"<|endofprompt|>", 100'276}});
  }
  if (known == "llama3") return AddLlama3Specials(spec);
  if (!spec.added.empty()) spec.named.eos = spec.added.front().id;
}

}  // namespace

bool LooksLikeTiktoken(std::string_view text) { return ParseLine(FirstLine(text)).has_value(); }

Result<std::shared_ptr<const Tokenizer>> LoadTiktoken(std::string_view text, std::string_view name,
                                                      std::string_view pattern, std::string fingerprint) {
  ByteBpeSpec spec;
  std::size_t ranks = 0;
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::size_t newline = text.find('\n');
    std::string_view line = FirstLine(text);
    text.remove_prefix(newline == text.npos ? text.size() : newline + 1);
    if (line.empty()) continue;
    auto parsed = ParseLine(line);
    if (!parsed) {
      return Fail(Code::kInvalidArgument,
                  "line {} is not \"base64 rank\"; expected the bytes of a token in base64, a space and its rank",
                  number);
    }
    auto at = static_cast<std::size_t>(parsed->rank);
    if (at >= spec.tokens.size()) spec.tokens.resize(at + 1);
    if (!spec.tokens[at].empty()) {
      return Fail(Code::kInvalidArgument, "line {}: rank {} comes twice; each token must have a rank of its own",
                  number, at);
    }
    spec.tokens[at] = std::move(parsed->token);
    ++ranks;
  }
  const Known* known = nullptr;
  for (const Known& one : kKnown) {
    if (one.ranks == ranks) known = &one;
  }
  spec.pattern = MR_TRY(PatternOf(known, name, pattern));
  if (known && known->pattern == spec.pattern) AddKnownSpecials(known->name, spec);
  return MakeByteBpe(std::move(spec), std::move(fingerprint));
}

}  // namespace millrace::tokenizer
