#include "millrace/tokenizer/huggingface/hf_model.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "millrace/tokenizer/tables/byte_trie.h"
#include "millrace/tokenizer/tables/merge_table.h"
#include "millrace/tokenizer/unicode/utf8.h"
#include "millrace/tokenizer/vocabulary/token_index.h"

namespace millrace::tokenizer::hf {
namespace {

/// The id of the token for unknown text, special or not. kNoToken if the model names none.
Result<TokenId> ReadUnknown(const TokenizerFile& file) {
  const Json& unk = Member(Member(file.json, "model"), "unk_token");
  if (!unk.is_string()) return kNoToken;
  const auto found = std::ranges::find(file.tokens, unk.get<std::string>());
  if (found == file.tokens.end() || found->empty()) {
    return Fail(Code::kUnsupported,
                "the tokenizer's unk_token (\"{}\") is not in its vocabulary, which is not supported",
                unk.get<std::string>());
  }
  return static_cast<TokenId>(found - file.tokens.begin());
}

Result<TokenId> RequireUnknown(const TokenizerFile& file) {
  const TokenId unk = MR_TRY(ReadUnknown(file));
  if (unk == kNoToken) return Fail(Code::kUnsupported, "a model without an unk_token is not supported");
  return unk;
}

class WordLevelModel final : public WordModel {
 public:
  static Result<std::unique_ptr<const WordModel>> Read(const TokenizerFile& file) {
    return std::make_unique<WordLevelModel>(file, MR_TRY(RequireUnknown(file)));
  }
  WordLevelModel(const TokenizerFile& file, TokenId unk) : vocabulary_(file), unk_(unk) {}

  void Encode(std::string_view word, EncodeWorkspace&, IdWriter& ids) const override {
    const TokenId id = vocabulary_.Find(word);
    ids.Append(id == kNoToken ? unk_ : id);
  }

 private:
  const ModelVocabulary vocabulary_;
  const TokenId unk_;
};

class WordPieceModel final : public WordModel {
 public:
  static Result<std::unique_ptr<const WordModel>> Read(const TokenizerFile& file) {
    const Json& model = Member(file.json, "model");
    auto made = std::unique_ptr<WordPieceModel>(new WordPieceModel(file));
    made->unk_ = MR_TRY(RequireUnknown(file));
    const Json& longest = Member(model, "max_input_chars_per_word");
    if (longest.is_number_unsigned()) made->longest_ = longest.get<std::size_t>();
    const Json& prefix = Member(model, "continuing_subword_prefix");
    made->AddTokens(prefix.is_string() ? prefix.get<std::string>() : "##");
    return made;
  }

  void Encode(std::string_view word, EncodeWorkspace&, IdWriter& ids) const override {
    const std::size_t before = ids.size();
    const auto characters = std::ranges::count_if(word, [](char byte) { return (byte & 0xC0) != 0x80; });
    if (static_cast<std::size_t>(characters) > longest_) return ids.Append(unk_);
    for (std::size_t at = 0; at < word.size();) {
      const ByteTrie::Match match = (at == 0 ? beginnings_ : continuations_).Longest(word.substr(at));
      if (match.length == 0) {
        ids.Cut(before);
        return ids.Append(unk_);
      }
      ids.Append(match.value);
      at += match.length;
    }
  }

 private:
  explicit WordPieceModel(const TokenizerFile& file) : vocabulary_(file) {}

  void AddTokens(std::string_view prefix) {
    std::vector<ByteTrie::Key> beginnings, continuations;
    for (TokenId id = 0; id < vocabulary_.strings().size(); ++id) {
      const std::string_view token = vocabulary_.strings()[id];
      if (token.empty()) continue;
      beginnings.push_back({token, id});
      if (token.starts_with(prefix) && token.size() > prefix.size()) {
        continuations.push_back({token.substr(prefix.size()), id});
      }
    }
    beginnings_ = ByteTrie(std::move(beginnings));
    continuations_ = ByteTrie(std::move(continuations));
  }

  const ModelVocabulary vocabulary_;
  ByteTrie beginnings_, continuations_;
  TokenId unk_ = kNoToken;
  std::size_t longest_ = 100;  // characters; the library's default
};

/// Merges of characters.
class BpeModel final : public WordModel {
 public:
  static Result<std::unique_ptr<const WordModel>> Read(const TokenizerFile& file) {
    const Json& model = Member(file.json, "model");
    auto made = std::unique_ptr<BpeModel>(new BpeModel(file));
    made->unk_ = MR_TRY(ReadUnknown(file));
    made->fuses_unknown_ = BoolMember(model, "fuse_unk");
    made->whole_words_first_ = BoolMember(model, "ignore_merges");
    made->prefix_ = StringMember(model, "continuing_subword_prefix");
    made->suffix_ = StringMember(model, "end_of_word_suffix");
    made->bytes_.fill(kNoToken);
    for (std::size_t byte = 0; BoolMember(model, "byte_fallback") && byte < made->bytes_.size(); ++byte) {
      made->bytes_[byte] = made->vocabulary_.Find(fmt::format("<0x{:02X}>", byte));
    }
    MR_TRY(made->AddMerges(file));
    return made;
  }

  void Encode(std::string_view word, EncodeWorkspace& workspace, IdWriter& ids) const override {
    if (whole_words_first_) {
      if (const TokenId whole = vocabulary_.Find(word); whole != kNoToken) return ids.Append(whole);
    }
    std::vector<Symbol>& symbols = workspace.symbols;
    symbols.clear();
    std::string affixed;
    bool pending_unknown = false;
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t length = DecodeUtf8(word.data() + at, word.data() + word.size()).length;
      std::string_view character = word.substr(at, length);
      const bool is_first = at == 0, is_last = at + length == word.size();
      if ((!is_first && !prefix_.empty()) || (is_last && !suffix_.empty())) {
        affixed.assign(is_first ? "" : prefix_).append(character).append(is_last ? suffix_ : "");
        character = affixed;
      }
      at += length;
      if (const TokenId id = vocabulary_.Find(character); id != kNoToken) {
        if (std::exchange(pending_unknown, false)) symbols.push_back(unk_);
        symbols.push_back(id);
      } else if (!AddBytes(character, symbols) && unk_ != kNoToken) {
        // As in the library, bytes come in front of a pending unknown character.
        if (std::exchange(pending_unknown, true) && !fuses_unknown_) symbols.push_back(unk_);
      }
    }
    if (pending_unknown) symbols.push_back(unk_);
    const auto merged = workspace.merger.Run(merges_, symbols);
    std::ranges::copy(merged, ids.Room(merged.size()));
    ids.Advance(merged.size());
  }

 private:
  explicit BpeModel(const TokenizerFile& file) : vocabulary_(file) {}

  /// Appends the tokens of the character's bytes. Appends nothing and returns false if a byte has no token.
  bool AddBytes(std::string_view character, std::vector<Symbol>& symbols) const {
    const bool all =
        std::ranges::all_of(character, [&](char byte) { return bytes_[static_cast<std::uint8_t>(byte)] != kNoToken; });
    for (const char byte : all ? character : std::string_view()) {
      symbols.push_back(bytes_[static_cast<std::uint8_t>(byte)]);
    }
    return all;
  }

  Status AddMerges(const TokenizerFile& file) {
    const auto pairs = MR_TRY(ReadMerges(Member(Member(file.json, "model"), "merges")));
    merges_ = MergeTable(pairs.size());
    // Of a pair that is listed twice the library keeps the last rank; the table keeps what is added first.
    for (std::size_t rank = pairs.size(); rank-- > 0;) {
      const auto& [left, right] = pairs[rank];
      if (right.size() < prefix_.size()) {
        return Fail(Code::kInvalidArgument,
                    "the merge of \"{}\" and \"{}\" lacks the prefix of continuations; the second must begin with "
                    "continuing_subword_prefix",
                    left, right);
      }
      const Symbol from = vocabulary_.Find(left), with = vocabulary_.Find(right);
      const Symbol to = vocabulary_.Find(left + right.substr(prefix_.size()));
      if (from == kNoToken || with == kNoToken || to == kNoToken) return FailMerge(file, left, right);
      merges_.Add(from, with, {to, static_cast<std::uint32_t>(rank)});
    }
    return {};
  }

  const ModelVocabulary vocabulary_;
  MergeTable merges_;
  std::array<TokenId, 256> bytes_{};  ///< kNoToken where there is none
  TokenId unk_ = kNoToken;
  bool fuses_unknown_ = false, whole_words_first_ = false;
  std::string prefix_, suffix_;
};

}  // namespace

ModelVocabulary::ModelVocabulary(const TokenizerFile& file) {
  std::vector<bool> special(file.tokens.size());
  for (const AddedToken& added : file.added) {
    if (added.special && static_cast<std::size_t>(added.id) < special.size()) {
      special[static_cast<std::size_t>(added.id)] = true;
    }
  }
  for (std::size_t id = 0; id < file.tokens.size(); ++id) strings_.Add(special[id] ? "" : file.tokens[id]);
  index_ = TokenIndex(strings_, file.tokens.size());
  for (TokenId id = 0; id < strings_.size(); ++id) {
    if (!strings_[id].empty()) index_.Insert(id);
  }
}

Result<std::unique_ptr<const WordModel>> ReadWordModel(const TokenizerFile& file) {
  const std::string type = ModelType(file.json);
  if (type == "BPE") return BpeModel::Read(file);
  if (type == "WordPiece") return WordPieceModel::Read(file);
  if (type == "WordLevel") return WordLevelModel::Read(file);
  if (type == "Unigram") return ReadUnigramModel(file);
  return Fail(Code::kUnsupported, "the tokenizer's model ({}) is not supported", type);
}

}  // namespace millrace::tokenizer::hf
