#include "millrace/tokenizer/byte_level/byte_bpe.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <ranges>
#include <utility>

#include "millrace/base/result.h"
#include "millrace/tokenizer/bpe/adjacent_characters.h"
#include "millrace/tokenizer/bpe/merger.h"
#include "millrace/tokenizer/tables/merge_table.h"
#include "millrace/tokenizer/unicode/nfc.h"
#include "millrace/tokenizer/unicode/utf8.h"
#include "millrace/tokenizer/vocabulary/token_index.h"

namespace millrace::tokenizer {
namespace {

class ByteBpe final : public VocabularyTokenizer {
 public:
  ByteBpe(ByteBpeSpec spec, std::string fingerprint)
      : VocabularyTokenizer(std::move(fingerprint)), spec_(std::move(spec)), splitter_(spec_.pattern) {}

  Status Build() {
    MR_TRY(AddTokens());
    if (spec_.merges) {
      AddListedMerges();
    } else {
      AddRankedMerges();
    }
    for (const std::string& token : spec_.tokens) adjacent_.AddToken(token);
    if (spec_.whole_words_first) FindExceptions();
    named_ = spec_.named;
    if (spec_.compose) nfc_.emplace();
    auto divided = MR_TRY(DivideTokens(std::exchange(spec_.added, {}), [this](std::string_view text) {
      std::string buffer;
      return std::string(nfc_ ? nfc_->Normalize(text, buffer) : text);
    }));
    added_ = std::move(divided.raw);
    added_to_normalized_ = std::move(divided.normalized);
    finds_more_ = divided.any_normalized;
    spec_.tokens = {};
    spec_.merges = {};
    return {};
  }

  Result<std::string> Decode(std::span<const TokenId> ids) const override {
    MR_TRY(CheckIds(ids));
    std::size_t bytes = 0;
    for (TokenId id : ids) bytes += decoded_[id].size();
    std::string text;
    text.resize_and_overwrite(bytes + TokenStrings::kSlack, [&](char* to, std::size_t) {
      for (TokenId id : ids) to = decoded_.Copy(id, to);
      return bytes;
    });
    return text;
  }

  Status DecodeNext(DecodeState& state, TokenId id, std::string& text) const override {
    MR_TRY(CheckId(id));
    state.pending += decoded_[id];
    std::size_t certain = state.pending.size() - UnfinishedEnd(state.pending);
    text.append(state.pending, 0, certain);
    state.pending.erase(0, certain);
    return {};
  }

  TokenId IdOf(std::string_view piece) const override { return index_.Find(piece); }
  std::string_view kind() const override { return "byte-bpe"; }

 protected:
  void EncodeSegment(const TextSegment& segment, EncodeWorkspace& workspace, IdWriter& ids) const override {
    if (!nfc_ && !finds_more_) return EncodeNormalized(segment.text, workspace, ids);
    std::string buffer;
    auto between = [&](std::string_view text, bool) {
      EncodeNormalized(text, workspace, ids);
      return !ids.full();
    };
    auto token = [&](TokenId id) {
      ids.Append(id);
      return !ids.full();
    };
    std::string_view text = nfc_ ? nfc_->Normalize(segment.text, buffer) : segment.text;
    added_to_normalized_.ForEach(text, segment.specials, between, token);
  }

 private:
  Status AddTokens() {
    std::vector<const AddedToken*> added_at(spec_.tokens.size(), nullptr);
    for (const AddedToken& added : spec_.added) {
      if (added.id < 0 || added.text.empty()) {
        return Fail(Code::kInvalidArgument,
                    "the tokenizer has an added token of no text; each one needs a text and an id of at least 0");
      }
      auto at = static_cast<std::size_t>(added.id);
      if (at >= added_at.size()) {
        added_at.resize(at + 1, nullptr);
        spec_.tokens.resize(at + 1);
      }
      added_at[at] = &added;
      if (added.special) spec_.tokens[at].clear();  // so that no text merges to a special token
    }
    std::size_t bytes = 0;
    for (const std::string& token : spec_.tokens) {
      MR_TRY(CheckPiece(token));
      bytes += token.size();
    }
    strings_.Reserve(spec_.tokens.size(), bytes);
    decoded_.Reserve(spec_.tokens.size(), bytes);
    for (std::size_t id = 0; id < spec_.tokens.size(); ++id) {
      bool only_added = added_at[id] && spec_.tokens[id].empty();
      strings_.Add(only_added ? added_at[id]->text : spec_.tokens[id]);
      decoded_.Add(only_added && !added_at[id]->special ? added_at[id]->text : spec_.tokens[id]);
    }
    index_ = TokenIndex(strings_, spec_.tokens.size());
    bytes_.fill(kNoToken);
    for (TokenId id = 0; id < strings_.size(); ++id) {
      if (strings_[id].empty()) continue;
      bool fresh = index_.Insert(id);
      const std::string& token = spec_.tokens[static_cast<std::size_t>(id)];
      if (!fresh && !token.empty()) {
        return Fail(Code::kInvalidArgument, "the tokenizer has the token {} twice; each id must have a text of its own",
                    id);
      }
      if (token.size() == 1) bytes_[static_cast<std::uint8_t>(token[0])] = id;
    }
    for (std::size_t byte = 0; byte < bytes_.size(); ++byte) {
      if (bytes_[byte] == kNoToken) {
        return Fail(Code::kInvalidArgument,
                    "the tokenizer has no token for the byte 0x{:02X}; a byte-level vocabulary must have all 256",
                    byte);
      }
    }
    return {};
  }

  TokenId TokenOf(std::string_view bytes) const {
    TokenId id = index_.Find(bytes);
    return id != kNoToken && !spec_.tokens[static_cast<std::size_t>(id)].empty() ? id : kNoToken;
  }

  void AddListedMerges() {
    merges_ = MergeTable(spec_.merges->size());
    // Of a pair that is listed twice the library keeps the last rank; the table keeps what is added first.
    auto rank = static_cast<std::uint32_t>(spec_.merges->size());
    for (const auto& merge : std::views::reverse(*spec_.merges)) {
      merges_.Add(merge.left, merge.right, {merge.merged, --rank});
    }
  }

  void AddRankedMerges() {
    std::vector<ByteBpeSpec::Merge> found;
    for (TokenId id = 0; id < strings_.size(); ++id) {
      std::string_view token = spec_.tokens[static_cast<std::size_t>(id)];
      for (std::size_t at = 1; at < token.size(); ++at) {
        TokenId left = TokenOf(token.substr(0, at));
        TokenId right = left == kNoToken ? kNoToken : TokenOf(token.substr(at));
        if (right != kNoToken) found.push_back({left, right, id});
      }
    }
    merges_ = MergeTable(found.size());
    for (auto [left, right, id] : found) merges_.Add(left, right, {id, static_cast<std::uint32_t>(id)});
  }

  /// Finds tokens that merging their bytes does not yield. They must be looked up before a word is cut.
  void FindExceptions() {
    Merger merger;
    std::vector<Symbol> symbols;
    std::size_t longest = 0;
    std::vector<TokenId> exceptions;
    for (TokenId id = 0; id < strings_.size(); ++id) {
      const std::string& token = spec_.tokens[static_cast<std::size_t>(id)];
      symbols.clear();
      for (char byte : token) symbols.push_back(bytes_[static_cast<std::uint8_t>(byte)]);
      if (token.empty() || merger.Run(merges_, symbols).size() == 1) continue;
      exceptions.push_back(id);
      longest = std::max(longest, token.size());
    }
    exceptions_ = TokenIndex(strings_, exceptions.size());
    for (TokenId id : exceptions) exceptions_.Insert(id);
    longest_exception_ = longest;
  }

  void EncodeNormalized(std::string_view text, EncodeWorkspace& workspace, IdWriter& ids) const {
    if (spec_.add_prefix_space && text[0] != ' ') {
      std::string spaced = std::move(workspace.text);
      spaced.assign(1, ' ').append(text);
      EncodeWords(spaced, workspace, ids);
      workspace.text = std::move(spaced);
    } else {
      EncodeWords(text, workspace, ids);
    }
  }

  void EncodeWords(std::string_view text, EncodeWorkspace& workspace, IdWriter& ids) const {
    const char* end = text.data() + text.size();
    for (const char* at = text.data(); at != end && !ids.full();) {
      const char* word_end = splitter_.WordEnd(at, end);
      EncodeSplitWord({at, word_end}, end, workspace, ids);
      at = word_end;
    }
  }

  /// Looks short ASCII words up in the cache. Cuts other words where no token crosses, and looks up the parts. Chinese
  /// has no spaces, so its words are long and rarely repeat, but their parts do.
  void EncodeSplitWord(std::string_view word, const char* end, EncodeWorkspace& workspace, IdWriter& ids) const {
    if (word.size() <= WordCache::kMaxBytes && IsAscii(word, end)) {
      return EncodeWord(word, end, workspace, ids,
                        [&](std::string_view unseen) { EncodeUnseen(unseen, workspace, ids); });
    }
    if (TokenId whole = Exception(word); whole != kNoToken) return ids.Append(whole);
    const char *at = word.data(), *begin = at, *word_end = at + word.size();
    char32_t previous = kInvalid;
    auto finish = [&] {
      std::string_view part(begin, at);
      auto merge = [&](std::string_view unseen) { Merge(unseen, workspace, ids); };
      if (Exception(part) == kNoToken) {
        EncodeWord(part, end, workspace, ids, merge);
      } else {
        merge(part);  // not through the cache, which holds its ids as a word
      }
      begin = at;
    };
    while (at != word_end) {
      DecodedCharacter character = DecodeUtf8(at, word_end);
      if (!adjacent_.MayJoin(previous, character.code)) finish();
      previous = character.code;
      at += character.length;
    }
    finish();
  }

  static bool IsAscii(std::string_view word, const char* end) {
    constexpr std::uint64_t kHigh = 0x8080808080808080u;
    WordCache::Key key = WordCache::MakeKey(word.data(), word.size(), end);
    return ((key.low | key.high) & kHigh) == 0;
  }

  TokenId Exception(std::string_view word) const {
    return word.size() <= longest_exception_ ? exceptions_.Find(word) : kNoToken;
  }

  void EncodeUnseen(std::string_view word, EncodeWorkspace& workspace, IdWriter& ids) const {
    if (TokenId whole = Exception(word); whole != kNoToken) return ids.Append(whole);
    Merge(word, workspace, ids);
  }

  void Merge(std::string_view bytes, EncodeWorkspace& workspace, IdWriter& ids) const {
    workspace.symbols.resize(bytes.size());
    for (std::size_t i = 0; i < bytes.size(); ++i) workspace.symbols[i] = bytes_[static_cast<std::uint8_t>(bytes[i])];
    auto merged = workspace.merger.Run(merges_, workspace.symbols);
    std::ranges::copy(merged, ids.Room(merged.size()));
    ids.Advance(merged.size());
  }

  ByteBpeSpec spec_;
  Splitter splitter_;
  std::optional<Nfc> nfc_;
  AddedTokens added_to_normalized_;
  bool finds_more_ = false;  ///< added_to_normalized_ is not empty
  TokenStrings decoded_;     ///< special tokens are empty
  TokenIndex index_;
  std::array<TokenId, 256> bytes_{};
  MergeTable merges_;
  AdjacentCharacters adjacent_;
  TokenIndex exceptions_;
  std::size_t longest_exception_ = 0;
};

}  // namespace

Result<std::shared_ptr<const Tokenizer>> MakeByteBpe(ByteBpeSpec spec, std::string fingerprint) {
  auto made = std::make_shared<ByteBpe>(std::move(spec), std::move(fingerprint));
  MR_TRY(made->Build());
  return made;
}

}  // namespace millrace::tokenizer
