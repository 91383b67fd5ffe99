#include "millrace/tokenizer/wordpiece/wordpiece.h"

#include <algorithm>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/tokenizer/tables/byte_trie.h"
#include "millrace/tokenizer/vocabulary/token_index.h"
#include "millrace/tokenizer/wordpiece/text_cleanup.h"

namespace millrace::tokenizer {
namespace {

std::size_t CountCharacters(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char byte) { return (byte & 0xC0) != 0x80; }));
}

class WordPiece final : public VocabularyTokenizer {
 public:
  WordPiece(WordPieceSpec spec, std::string fingerprint)
      : VocabularyTokenizer(std::move(fingerprint)), spec_(std::move(spec)), words_(spec_.normalizer) {}

  Status Build() {
    named_ = spec_.named;
    if (named_.unk == kNoToken) {
      return Fail(Code::kInvalidArgument,
                  "the tokenizer has no unknown token; add [UNK], or what unk_token names, to its vocabulary");
    }
    std::vector<bool> special(spec_.tokens.size());
    for (const AddedToken& added : spec_.added) special[static_cast<std::size_t>(added.id)] = added.special;
    std::vector<ByteTrie::Key> beginnings, continuations;
    for (const std::string& token : spec_.tokens) strings_.Add(token);
    index_ = TokenIndex(strings_, spec_.tokens.size());
    for (TokenId id = 0; id < strings_.size(); ++id) {
      std::string_view token = strings_[id], rest = token;
      MR_TRY(CheckPiece(token));
      bool continues = !spec_.continuing_prefix.empty() && token.starts_with(spec_.continuing_prefix);
      if (continues) rest.remove_prefix(spec_.continuing_prefix.size());
      bool is_special = special[static_cast<std::size_t>(id)];
      first_.Add(is_special ? "" : Decoded(token));
      later_.Add(is_special ? "" : Decoded(continues ? std::string(rest) : " " + std::string(token)));
      hidden_.push_back(is_special);
      if (token.empty()) continue;
      if (!index_.Insert(id)) {
        return Fail(Code::kInvalidArgument,
                    "the tokenizer has the token \"{}\" twice; each token must be there only once", token);
      }
      if (is_special || std::ranges::find(spec_.not_in_words, id) != spec_.not_in_words.end()) continue;
      beginnings.push_back({token, id});
      if (continues && !rest.empty()) continuations.push_back({rest, id});
    }
    beginnings_ = ByteTrie(std::move(beginnings));
    continuations_ = ByteTrie(std::move(continuations));
    added_ = AddedTokens(std::move(spec_.added));
    spec_.tokens = {};
    return {};
  }

  Status DecodeNext(DecodeState& state, TokenId id, std::string& text) const override {
    MR_TRY(CheckId(id));
    if (hidden_[static_cast<std::size_t>(id)]) return {};
    text += state.begun ? later_[id] : first_[id];
    state.begun = true;
    return {};
  }

  TokenId IdOf(std::string_view piece) const override { return index_.Find(piece); }
  std::string_view kind() const override { return "wordpiece"; }

 protected:
  void EncodeSegment(const TextSegment& segment, EncodeWorkspace& workspace, IdWriter& ids) const override {
    words_.ForEach(segment.text, workspace.text, [&](std::string_view word) {
      EncodeWord(word, word.data() + word.size(), workspace, ids,
                 [&](std::string_view unseen) { EncodeUnseen(unseen, ids); });
      return !ids.full();
    });
  }

 private:
  std::string Decoded(std::string_view token) const {
    return spec_.cleanup ? CleanUpSpaces(std::string(token)) : std::string(token);
  }

  /// A word of which any part is in no piece is unknown as a whole.
  void EncodeUnseen(std::string_view word, IdWriter& ids) const {
    std::size_t before = ids.size();
    if (CountCharacters(word) > spec_.max_word_characters) return ids.Append(named_.unk);
    for (std::size_t at = 0; at < word.size();) {
      ByteTrie::Match match = (at == 0 ? beginnings_ : continuations_).Longest(word.substr(at));
      if (match.length == 0) {
        ids.Cut(before);
        return ids.Append(named_.unk);
      }
      ids.Append(match.value);
      at += match.length;
    }
  }

  WordPieceSpec spec_;
  BertWords words_;
  TokenStrings first_, later_;  ///< decoded, at the beginning of the text and behind other tokens
  std::vector<bool> hidden_;    ///< special tokens, which decode to nothing
  TokenIndex index_;
  ByteTrie beginnings_, continuations_;
};

}  // namespace

Result<std::shared_ptr<const Tokenizer>> MakeWordPiece(WordPieceSpec spec, std::string fingerprint) {
  auto made = std::make_shared<WordPiece>(std::move(spec), std::move(fingerprint));
  MR_TRY(made->Build());
  return made;
}

bool LooksLikeBertVocabulary(std::string_view text) {
  std::string_view beginning = text.substr(0, 64 * 1024);
  return beginning.starts_with("[UNK]\n") || beginning.find("\n[UNK]\n") != beginning.npos ||
         beginning.find("\n[UNK]\r\n") != beginning.npos;
}

Result<std::shared_ptr<const Tokenizer>> LoadBertVocabulary(std::string_view text, std::string fingerprint) {
  WordPieceSpec spec;
  bool capitals = false;
  if (!IsValidUtf8(text))
    return Fail(Code::kInvalidArgument, "the tokenizer's vocabulary is not UTF-8; convert vocab.txt to UTF-8");
  for (std::string_view line : Split(text, '\n')) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t')) line.remove_suffix(1);
    auto id = static_cast<TokenId>(spec.tokens.size());
    bool bracketed = line.starts_with('[') && line.ends_with(']');
    if (line == "[UNK]") spec.named.unk = id;
    if (line == "[CLS]") spec.named.bos = id;
    if (line == "[SEP]") spec.named.eos = id;
    if (line == "[PAD]") spec.named.pad = id;
    for (std::string_view special : {"[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"}) {
      if (line == special) spec.added.push_back({.text = std::string(line), .id = id});
    }
    capitals |= !bracketed && std::ranges::any_of(line, [](char c) { return c >= 'A' && c <= 'Z'; });
    spec.tokens.emplace_back(line);
  }
  if (spec.tokens.back().empty()) spec.tokens.pop_back();  // behind the last newline
  spec.normalizer.lowercase = spec.normalizer.strip_accents = !capitals;
  return MakeWordPiece(std::move(spec), std::move(fingerprint));
}

}  // namespace millrace::tokenizer
