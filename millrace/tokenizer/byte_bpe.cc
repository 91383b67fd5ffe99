#include "millrace/tokenizer/byte_bpe.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/tokenizer/utf8.h"

namespace millrace::tokenizer {
namespace {

constexpr std::size_t kMaxTextBytes = (1u << 31) - 1, kMaxTokenBytes = 4096;

class ByteBpe final : public Tokenizer {
 public:
  explicit ByteBpe(ByteBpeSpec spec, std::string fingerprint)
      : spec_(std::move(spec)), splitter_(spec_.pattern), fingerprint_(std::move(fingerprint)) {}

  Status Build() {
    MR_TRY(AddTokens());
    if (spec_.merges) {
      AddListedMerges();
    } else {
      AddRankedMerges();
    }
    for (const std::string& token : spec_.tokens) joints_.AddToken(token);
    if (spec_.whole_words_first) FindExceptions();
    std::vector<ByteTrie::Key> all, text_only;
    for (const auto& special : spec_.specials) {
      all.push_back({special.text, special.id});
      if (special.is_text) text_only.push_back({special.text, special.id});
    }
    specials_ = ByteTrie(std::move(all));
    text_specials_ = ByteTrie(std::move(text_only));
    spec_.tokens = {};
    spec_.merges = {};
    return {};
  }

  Status Encode(std::string_view text, std::vector<TokenId>& ids) const override {
    return EncodeFirst(text, std::string_view::npos, ids);
  }
  Status EncodeFirst(std::string_view text, std::size_t count, std::vector<TokenId>& ids) const override {
    return EncodeAround(text_specials_, text, count, ids);
  }
  Status EncodeWithSpecials(std::string_view text, std::vector<TokenId>& ids) const override {
    return EncodeAround(specials_, text, std::string_view::npos, ids);
  }

  Result<std::string> Decode(std::span<const TokenId> ids) const override {
    std::size_t bytes = 0;
    for (TokenId id : ids) {
      MR_TRY(CheckId(id));
      bytes += decoded_[id].size();
    }
    std::string text;
    text.reserve(bytes);
    for (TokenId id : ids) text += decoded_[id];
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

  Result<std::string> Piece(TokenId id) const override {
    MR_TRY(CheckId(id));
    return std::string(pieces_[id]);
  }
  TokenId IdOf(std::string_view piece) const override { return index_.Find(piece); }

  int vocab_size() const override { return pieces_.size(); }
  TokenId bos() const override { return spec_.bos; }
  TokenId eos() const override { return spec_.eos; }
  TokenId unk() const override { return spec_.unk; }
  TokenId pad() const override { return spec_.pad; }
  std::string_view kind() const override { return "byte-bpe"; }
  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  Status AddTokens() {
    std::vector<const ByteBpeSpec::Special*> special_at(spec_.tokens.size(), nullptr);
    for (const auto& special : spec_.specials) {
      if (special.id < 0 || special.text.empty())
        return Fail(Code::kInvalidArgument, "it has a special token of no text");
      auto at = static_cast<std::size_t>(special.id);
      if (at >= special_at.size()) {
        special_at.resize(at + 1, nullptr);
        spec_.tokens.resize(at + 1);
      }
      special_at[at] = &special;
    }
    std::size_t bytes = 0;
    for (const std::string& token : spec_.tokens) {
      if (token.size() > kMaxTokenBytes) {
        return Fail(Code::kUnsupported, "it has a token of {}", FormatBytes(token.size()));
      }
      bytes += token.size();
    }
    pieces_.Reserve(spec_.tokens.size(), bytes);
    decoded_.Reserve(spec_.tokens.size(), bytes);
    for (std::size_t id = 0; id < spec_.tokens.size(); ++id) {
      const auto* special = special_at[id];
      if (special) spec_.tokens[id].clear();
      pieces_.Add(special ? special->text : spec_.tokens[id]);
      decoded_.Add(special ? (special->is_text ? special->text : "") : spec_.tokens[id]);
    }
    index_ = PieceIndex(pieces_, spec_.tokens.size());
    bytes_.fill(kNoToken);
    for (TokenId id = 0; id < pieces_.size(); ++id) {
      if (pieces_[id].empty()) continue;
      bool fresh = index_.Insert(id);
      const std::string& token = spec_.tokens[static_cast<std::size_t>(id)];
      if (!fresh && !token.empty()) return Fail(Code::kInvalidArgument, "it has the token {} twice", id);
      if (token.size() == 1) bytes_[static_cast<std::uint8_t>(token[0])] = id;
    }
    for (std::size_t byte = 0; byte < bytes_.size(); ++byte) {
      if (bytes_[byte] == kNoToken) return Fail(Code::kInvalidArgument, "it has no token for the byte 0x{:02X}", byte);
    }
    return {};
  }

  TokenId TokenOf(std::string_view bytes) const {
    TokenId id = index_.Find(bytes);
    return id != kNoToken && !spec_.tokens[static_cast<std::size_t>(id)].empty() ? id : kNoToken;
  }

  void AddListedMerges() {
    merges_ = MergeTable(spec_.merges->size());
    std::uint32_t rank = 0;
    for (const auto& merge : *spec_.merges) merges_.Add(merge.left, merge.right, {merge.merged, rank++});
  }

  void AddRankedMerges() {
    std::vector<ByteBpeSpec::Merge> found;
    for (TokenId id = 0; id < pieces_.size(); ++id) {
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

  /// Tokens that their bytes do not merge to: they must be looked for before anything is cut.
  void FindExceptions() {
    Merger merger;
    std::vector<Symbol> symbols;
    std::size_t longest = 0;
    std::vector<TokenId> exceptions;
    for (TokenId id = 0; id < pieces_.size(); ++id) {
      const std::string& token = spec_.tokens[static_cast<std::size_t>(id)];
      symbols.clear();
      for (char byte : token) symbols.push_back(bytes_[static_cast<std::uint8_t>(byte)]);
      if (token.empty() || merger.Run(merges_, symbols).size() == 1) continue;
      exceptions.push_back(id);
      longest = std::max(longest, token.size());
    }
    exceptions_ = PieceIndex(pieces_, exceptions.size());
    for (TokenId id : exceptions) exceptions_.Insert(id);
    longest_exception_ = longest;
  }

  Status EncodeAround(const ByteTrie& specials, std::string_view text, std::size_t count,
                      std::vector<TokenId>& ids) const {
    if (text.size() > kMaxTextBytes) {
      return Fail(Code::kInvalidArgument, "a text of {} cannot be encoded at once; split it", FormatBytes(text.size()));
    }
    if (text.empty() || count == 0) return {};
    ScratchPool::Lease scratch(scratches_);
    IdWriter writer(ids, count);
    for (std::size_t at = 0; at < text.size() && !writer.full();) {
      ByteTrie::Match match;
      std::size_t special = specials.empty() ? text.size() : specials.Find(text, at, match);
      EncodePart(text.substr(at, special - at), *scratch, writer);
      if (match.length > 0 && !writer.full()) writer.Append(match.value);
      at = special + match.length;
    }
    return {};
  }

  void EncodePart(std::string_view text, Scratch& scratch, IdWriter& ids) const {
    if (text.empty()) return;
    if (spec_.add_prefix_space && text[0] != ' ') {
      std::string spaced = std::move(scratch.text);
      spaced.assign(1, ' ').append(text);
      EncodeWords(spaced, scratch, ids);
      scratch.text = std::move(spaced);
    } else {
      EncodeWords(text, scratch, ids);
    }
  }

  void EncodeWords(std::string_view text, Scratch& scratch, IdWriter& ids) const {
    const char* end = text.data() + text.size();
    for (const char* at = text.data(); at != end && !ids.full();) {
      const char* word_end = splitter_.WordEnd(at, end);
      EncodeSplitWord({at, word_end}, end, scratch, ids);
      at = word_end;
    }
  }

  /// Short words of ASCII are looked up as they are. Others are cut where no token reaches over: Chinese has no spaces,
  /// so that words are long and seldom seen twice, but their characters are.
  void EncodeSplitWord(std::string_view word, const char* end, Scratch& scratch, IdWriter& ids) const {
    if (word.size() <= WordCache::kMaxBytes && IsAscii(word, end)) {
      return EncodeWord(word, end, scratch, ids, [&](std::string_view unseen) { EncodeUnseen(unseen, scratch, ids); });
    }
    if (TokenId whole = Exception(word); whole != kNoToken) return ids.Append(whole);
    const char *at = word.data(), *begin = at, *word_end = at + word.size();
    char32_t previous = kInvalid;
    auto finish = [&] {
      std::string_view part(begin, at);
      auto merge = [&](std::string_view unseen) { Merge(unseen, scratch, ids); };
      if (Exception(part) == kNoToken) {
        EncodeWord(part, end, scratch, ids, merge);
      } else {
        merge(part);  // the cache holds what it is as a word
      }
      begin = at;
    };
    while (at != word_end) {
      Decoded character = DecodeUtf8(at, word_end);
      if (!joints_.MayJoin(previous, character.code)) finish();
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

  void EncodeUnseen(std::string_view word, Scratch& scratch, IdWriter& ids) const {
    if (TokenId whole = Exception(word); whole != kNoToken) return ids.Append(whole);
    Merge(word, scratch, ids);
  }

  void Merge(std::string_view bytes, Scratch& scratch, IdWriter& ids) const {
    scratch.symbols.resize(bytes.size());
    for (std::size_t i = 0; i < bytes.size(); ++i) scratch.symbols[i] = bytes_[static_cast<std::uint8_t>(bytes[i])];
    auto merged = scratch.merger.Run(merges_, scratch.symbols);
    std::ranges::copy(merged, ids.Room(merged.size()));
    ids.Advance(merged.size());
  }

  Status CheckId(TokenId id) const {
    if (id >= 0 && id < vocab_size()) return {};
    return Fail(Code::kInvalidArgument, "token {} is outside the vocabulary of {}", id, vocab_size());
  }

  ByteBpeSpec spec_;
  Splitter splitter_;
  std::string fingerprint_;
  Pieces pieces_, decoded_;  ///< decoded_: special tokens are empty
  PieceIndex index_;
  std::array<TokenId, 256> bytes_{};
  MergeTable merges_;
  Joints joints_;
  PieceIndex exceptions_;
  std::size_t longest_exception_ = 0;
  ByteTrie specials_, text_specials_;
  mutable ScratchPool scratches_;
};

}  // namespace

Result<std::shared_ptr<const Tokenizer>> MakeByteBpe(ByteBpeSpec spec, std::string fingerprint) {
  auto made = std::make_shared<ByteBpe>(std::move(spec), std::move(fingerprint));
  MR_TRY(made->Build());
  return made;
}

}  // namespace millrace::tokenizer
