// Unigram models as Hugging Face's tokenizer.json has them: T5, XLM-R, mBART and their like.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "millrace/base/digest.h"
#include "millrace/base/text.h"
#include "millrace/tokenizer/byte_trie.h"
#include "millrace/tokenizer/hf_file.h"
#include "millrace/tokenizer/hf_normalizer.h"
#include "millrace/tokenizer/sentencepiece_model.h"
#include "millrace/tokenizer/unicode.h"
#include "millrace/tokenizer/utf8.h"

namespace millrace::tokenizer::hf {
namespace {

constexpr double kUnknownPenalty = 10.0;

/// How words are found in normalized text.
struct Words {
  enum class Prefix { kNever, kFirst, kAlways };
  bool at_spaces = false;  ///< white space divides the text first, and is gone
  bool at_marks = true;    ///< a word begins at each mark that stands for a space
  Prefix prefix = Prefix::kAlways;
};

struct UnigramSpec {
  std::vector<double> scores;
  std::vector<HfNormalizer::Step> normalizer;
  Words words;
  bool decoder_strips = true;  ///< marks of the first token are no spaces
  bool byte_fallback = false;
};

/// The segmentation of the best sum of scores, for each word by itself.
class Unigram final : public VocabularyTokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> Make(File file, UnigramSpec spec, std::string fingerprint) {
    auto made = std::shared_ptr<Unigram>(new Unigram(std::move(spec), std::move(fingerprint)));
    MR_TRY(made->Build(std::move(file)));
    return made;
  }

  Status DecodeNext(DecodeState& state, TokenId id, std::string& text) const override {
    MR_TRY(CheckId(id));
    if (hidden_[static_cast<std::size_t>(id)]) return {};
    const bool first = !std::exchange(state.begun, true);
    std::string_view piece = pieces_[id];
    while (!piece.empty()) {
      const std::size_t mark = piece.find(kSpaceMark);
      text += piece.substr(0, mark);
      if (mark == piece.npos) break;
      if (!first || !spec_.decoder_strips) text += ' ';
      piece.remove_prefix(mark + kSpaceMark.size());
    }
    return {};
  }

  TokenId IdOf(std::string_view piece) const override { return index_.Find(piece); }
  std::string_view kind() const override { return "unigram"; }

 protected:
  void EncodePart(const Part& part, Scratch& scratch, IdWriter& ids) const override {
    std::string normalized = std::move(scratch.text);
    normalizer_.Normalize(part.text, normalized);
    std::string marked;
    auto between = [&](std::string_view text, bool first) {
      EncodeWords(text, part.first && first, marked, scratch, ids);
      return !ids.full();
    };
    auto token = [&](TokenId id) {
      ids.Append(id);
      return !ids.full();
    };
    added_to_normalized_.ForEach(normalized, part.specials, between, token);
    scratch.text = std::move(normalized);
  }

 private:
  Unigram(UnigramSpec spec, std::string fingerprint)
      : VocabularyTokenizer(std::move(fingerprint)), spec_(std::move(spec)), normalizer_(spec_.normalizer) {}

  Status Build(File file) {
    std::vector<bool> special(file.tokens.size());
    for (const AddedToken& one : file.added) {
      const auto at = static_cast<std::size_t>(one.id);
      if (at >= file.tokens.size()) {
        file.tokens.resize(at + 1);
        special.resize(at + 1);
      }
      file.tokens[at] = one.text;
      if (one.special) special[at] = true;
    }
    std::size_t bytes = 0;
    for (const std::string& token : file.tokens) bytes += token.size();
    pieces_.Reserve(file.tokens.size(), bytes);
    for (const std::string& token : file.tokens) {
      MR_TRY(CheckPiece(token));
      pieces_.Add(token);
    }
    index_ = PieceIndex(pieces_, file.tokens.size());
    std::vector<ByteTrie::Key> keys;
    double lowest = std::numeric_limits<double>::max();
    for (TokenId id = 0; id < pieces_.size(); ++id) {
      const auto at = static_cast<std::size_t>(id);
      if (at < spec_.scores.size()) lowest = std::min(lowest, spec_.scores[at]);
      if (pieces_[id].empty()) continue;
      if (!index_.Insert(id)) {
        return Fail(Code::kInvalidArgument, "it has the token \"{}\" twice", pieces_[id]);
      }
      // What is special is never found in a document's text.
      if (at < spec_.scores.size() && !special[at] && id != file.named.unk) keys.push_back({pieces_[id], id});
    }
    unknown_score_ = lowest - kUnknownPenalty;
    trie_ = ByteTrie(std::move(keys));
    hidden_ = std::move(special);
    named_ = file.named;
    MR_TRY(FindAdded(std::move(file.added)));
    return spec_.byte_fallback ? FindBytes() : Status{};
  }

  Status FindAdded(std::vector<AddedToken> tokens) {
    auto divided = MR_TRY(DivideTokens(std::move(tokens), [this](std::string_view text) {
      std::string normalized;
      normalizer_.Normalize(text, normalized);
      return normalized;
    }));
    if (divided.any_normalized && spec_.words.prefix == Words::Prefix::kFirst) {
      // Whether a part is the first one goes by where its characters were before they were normalized.
      return Fail(Code::kUnsupported,
                  "added tokens in normalized text, with a prefix for the first word alone, are not "
                  "supported; set their \"normalized\": false");
    }
    added_ = std::move(divided.raw);
    added_to_normalized_ = std::move(divided.normalized);
    return {};
  }

  Status FindBytes() {
    for (int byte = 0; byte < 256; ++byte) {
      bytes_[static_cast<std::size_t>(byte)] = index_.Find(fmt::format("<0x{:02X}>", byte));
      if (bytes_[static_cast<std::size_t>(byte)] == kNoToken) {
        return Fail(Code::kUnsupported, "byte_fallback without a token for each byte is not supported");
      }
    }
    return {};
  }

  /// Where the next white space is in the text, and its length; the text's end.
  static std::size_t NextSpace(std::string_view text, std::size_t& length) {
    std::size_t at = 0;
    while (at < text.size()) {
      const Decoded character = DecodeUtf8(text.data() + at, text.data() + text.size());
      length = character.length;
      if (IsWhiteSpace(character.code)) break;
      at += length;
    }
    return at;
  }

  void EncodeWords(std::string_view text, bool first, std::string& marked, Scratch& scratch, IdWriter& ids) const {
    if (!spec_.words.at_spaces) return EncodeStretch(text, first, marked, scratch, ids);
    while (!text.empty() && !ids.full()) {
      std::size_t length = 0;
      const std::size_t space = NextSpace(text, length);
      EncodeStretch(text.substr(0, space), first, marked, scratch, ids);
      text.remove_prefix(std::min(space + length, text.size()));
    }
  }

  /// Marks take the place of spaces, and a prefix is put in front where one is wanted.
  void EncodeStretch(std::string_view text, bool first, std::string& marked, Scratch& scratch, IdWriter& ids) const {
    if (text.empty()) return;
    marked.clear();
    const bool begins = text.starts_with(' ') || text.starts_with(kSpaceMark);
    const bool wanted =
        spec_.words.prefix == Words::Prefix::kAlways || (spec_.words.prefix == Words::Prefix::kFirst && first);
    if (wanted && !begins) marked += kSpaceMark;
    for (char c : text) c == ' ' ? marked += kSpaceMark : marked += c;
    for (std::string_view rest = marked; !rest.empty() && !ids.full();) {
      const std::size_t next = spec_.words.at_marks ? rest.find(kSpaceMark, 1) : rest.npos;
      const std::string_view word = rest.substr(0, next);
      EncodeWord(word, marked.data() + marked.size(), scratch, ids,
                 [&](std::string_view unseen) { EncodeUnseen(unseen, scratch, ids); });
      rest.remove_prefix(word.size());
    }
  }

  void FindBestPath(std::string_view word, std::vector<WordPathNode>& path) const {
    path.assign(word.size() + 1, {});
    auto offer = [&](std::size_t end, double score, TokenId id, std::size_t start) {
      WordPathNode& node = path[end];
      if (node.id == kNoToken || score > node.score) node = {score, id, static_cast<std::uint32_t>(start)};
    };
    for (std::size_t start = 0; start < word.size();) {
      const double before = path[start].score;
      const std::size_t length = DecodeUtf8(word.data() + start, word.data() + word.size()).length;
      bool known = false;
      std::int32_t state = 0;
      for (std::size_t end = start; end < word.size();) {
        state = trie_.Step(state, word[end++]);
        if (state == ByteTrie::kNone) break;
        const TokenId id = trie_.Value(state);
        if (id == ByteTrie::kNone) continue;
        known |= end - start == length;
        offer(end, spec_.scores[static_cast<std::size_t>(id)] + before, id, start);
      }
      if (!known) offer(start + length, unknown_score_ + before, named_.unk, start);
      start += length;
    }
  }

  void EncodeUnseen(std::string_view word, Scratch& scratch, IdWriter& ids) const {
    std::vector<WordPathNode>& path = scratch.word_path;
    FindBestPath(word, path);
    // From the end to the beginning, turning each link around.
    const auto end = static_cast<std::uint32_t>(word.size());
    std::uint32_t after = end;
    for (std::uint32_t at = end; at != 0;) after = std::exchange(at, std::exchange(path[at].start, after));
    bool after_unknown = false;
    for (std::uint32_t begin = 0, at = after;; begin = std::exchange(at, path[at].start)) {
      const bool unknown = path[at].id == named_.unk;
      if (!unknown) {
        ids.Append(path[at].id);
      } else if (spec_.byte_fallback) {
        for (char byte : word.substr(begin, at - begin)) ids.Append(bytes_[static_cast<std::uint8_t>(byte)]);
      } else if (!after_unknown) {
        ids.Append(named_.unk);
      }
      after_unknown = unknown;
      if (at == end) return;
    }
  }

  const UnigramSpec spec_;
  const HfNormalizer normalizer_;
  AddedTokens added_to_normalized_;
  ByteTrie trie_;
  PieceIndex index_;
  std::vector<bool> hidden_;  ///< special tokens, which decode to nothing
  std::array<TokenId, 256> bytes_{};
  double unknown_score_ = 0;
};

Result<HfNormalizer::Step> ReadReplace(const Json& step) {
  const Json& pattern = Get(step, "pattern");
  const std::string text = Text(pattern, "String"), regex = Text(pattern, "Regex"), to = Text(step, "content");
  if (!text.empty()) return HfNormalizer::Replace{text, to};
  if (regex == " {2,}") return HfNormalizer::ReplaceSpaces{.least = 2, .to = to};
  if (regex == " +") return HfNormalizer::ReplaceSpaces{.least = 1, .to = to};
  return Unsupported("normalizer", pattern);
}

Result<std::vector<HfNormalizer::Step>> ReadNormalizer(const Json& normalizer) {
  std::vector<HfNormalizer::Step> steps;
  for (const Json& step : Steps(normalizer, "normalizers")) {
    const std::string type = Text(step, "type");
    if (type == "Precompiled") {
      auto map = Base64Decode(Text(step, "precompiled_charsmap"));
      if (!map) return Fail(Code::kInvalidArgument, "its precompiled_charsmap is not base64");
      if (!map->empty()) steps.emplace_back(HfNormalizer::Precompiled{MR_TRY(CharacterMap::Parse(*map))});
    } else if (type == "Replace") {
      steps.push_back(MR_TRY(ReadReplace(step)));
    } else if (type == "NFC") {
      steps.emplace_back(HfNormalizer::Compose{});
    } else if (type == "NFKC") {
      steps.emplace_back(HfNormalizer::ComposeCompatible{});
    } else if (type == "NFD") {
      steps.emplace_back(HfNormalizer::Decompose{});
    } else if (type == "NFKD") {
      steps.emplace_back(HfNormalizer::DecomposeCompatible{});
    } else if (type == "StripAccents") {
      steps.emplace_back(HfNormalizer::StripAccents{});
    } else if (type == "Lowercase") {
      steps.emplace_back(HfNormalizer::Lowercase{});
    } else if (type == "Strip") {
      steps.emplace_back(HfNormalizer::Strip{Flag(step, "strip_left", true), Flag(step, "strip_right", true)});
    } else {
      return Unsupported("normalizer", step);
    }
  }
  return steps;
}

/// "always", "first" or "never", or what files said before.
Result<Words::Prefix> ReadPrefix(const Json& metaspace) {
  if (Text(metaspace, "replacement") != kSpaceMark) return Unsupported("replacement", Get(metaspace, "replacement"));
  const std::string scheme = Text(metaspace, "prepend_scheme");
  if (scheme.empty()) {
    return Flag(metaspace, "add_prefix_space", true) ? Words::Prefix::kAlways : Words::Prefix::kNever;
  }
  if (scheme == "always") return Words::Prefix::kAlways;
  if (scheme == "first") return Words::Prefix::kFirst;
  if (scheme == "never") return Words::Prefix::kNever;
  return Unsupported("prepend_scheme", Json(scheme));
}

Result<Words> ReadWords(const Json& pre_tokenizer) {
  Words words;
  auto steps = Steps(pre_tokenizer, "pretokenizers");
  if (steps.size() == 2 && Text(steps[0], "type") == "WhitespaceSplit") {
    words.at_spaces = true;
    steps.erase(steps.begin());
  }
  if (steps.size() != 1 || Text(steps[0], "type") != "Metaspace") return Unsupported("pre_tokenizer", pre_tokenizer);
  words.prefix = MR_TRY(ReadPrefix(steps[0]));
  words.at_marks = Flag(steps[0], "split", true);
  if (words.at_spaces && words.prefix == Words::Prefix::kFirst) return Unsupported("prepend_scheme", Json("first"));
  return words;
}

Status ReadScores(const Json& vocabulary, File& file, std::vector<double>& scores) {
  if (!vocabulary.is_array() || vocabulary.size() > kMaxVocabulary) {
    return Fail(Code::kInvalidArgument, "its model has no vocabulary");
  }
  for (const Json& one : vocabulary) {
    if (!one.is_array() || one.size() != 2 || !one[0].is_string() || !one[1].is_number() ||
        !std::isfinite(one[1].get<double>())) {
      return Fail(Code::kInvalidArgument, "the token {} of its vocabulary is not a text and a score", scores.size());
    }
    file.tokens.push_back(one[0].get<std::string>());
    scores.push_back(one[1].get<double>());
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> MakeUnigram(File file, std::string fingerprint) {
  const Json& model = Get(file.json, "model");
  UnigramSpec spec;
  MR_TRY(ReadScores(Get(model, "vocab"), file, spec.scores));
  const Json& unknown = Get(model, "unk_id");
  if (!unknown.is_number_unsigned() || unknown.get<std::uint64_t>() >= file.tokens.size()) {
    return Fail(Code::kUnsupported, "a Unigram model without an unk_id is not supported");
  }
  file.named.unk = unknown.get<TokenId>();
  spec.byte_fallback = Flag(model, "byte_fallback");
  spec.normalizer = MR_TRY(ReadNormalizer(Get(file.json, "normalizer")));
  spec.words = MR_TRY(ReadWords(Get(file.json, "pre_tokenizer")));
  const Json& decoder = Get(file.json, "decoder");
  if (Text(decoder, "type") != "Metaspace") return Unsupported("decoder", decoder);
  spec.decoder_strips = MR_TRY(ReadPrefix(decoder)) != Words::Prefix::kNever;
  return Unigram::Make(std::move(file), std::move(spec), std::move(fingerprint));
}

}  // namespace millrace::tokenizer::hf
