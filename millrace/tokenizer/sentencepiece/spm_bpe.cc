#include "millrace/tokenizer/sentencepiece/spm_bpe.h"

#include <algorithm>
#include <ranges>
#include <string>

#include "millrace/tokenizer/unicode/utf8.h"
#include "millrace/tokenizer/vocabulary/token_index.h"

namespace millrace::tokenizer {
namespace {

using ScoredPiece = SentencePieceModel::ScoredPiece;
using Type = SentencePieceModel::Type;

bool IsText(const ScoredPiece& piece) { return piece.type == Type::kNormal || piece.type == Type::kUserDefined; }

/// Returns the ranks of pieces by falling score. Equal scores have equal ranks, so the leftmost of them merges first.
std::vector<std::uint32_t> Ranks(const std::vector<ScoredPiece>& pieces) {
  std::vector<float> scores;
  for (const ScoredPiece& piece : pieces) {
    if (IsText(piece)) scores.push_back(piece.score);
  }
  std::ranges::sort(scores, std::greater());
  auto repeated = std::ranges::unique(scores);
  scores.erase(repeated.begin(), repeated.end());
  std::vector<std::uint32_t> ranks;
  for (const ScoredPiece& piece : pieces) {
    auto found = std::ranges::lower_bound(scores, piece.score, std::greater());
    ranks.push_back(static_cast<std::uint32_t>(found - scores.begin()));
  }
  return ranks;
}

}  // namespace

SpmBpe::SpmBpe(const SentencePieceModel& model, const Options& options) : options_(options), characters_(kNoToken) {
  AddCharacters(model);
  AddMerges(model);
  std::vector<std::pair<std::string, std::int32_t>> frozen;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const ScoredPiece& piece = model.pieces[id];
    if (!Occurs(piece)) continue;
    AddAdjacent(piece.text);
    if (piece.type != Type::kUserDefined) continue;
    frozen.emplace_back(options.space_is_mark ? MarksToSpaces(piece.text) : std::string(piece.text), ids_[id]);
  }
  std::vector<ByteTrie::Key> keys;
  for (auto& [text, id] : frozen) keys.push_back({text, id});
  frozen_ = ByteTrie(std::move(keys));
}

/// As the library, looks for the id of a character among control, unknown and byte pieces first, then among the others.
void SpmBpe::AddCharacters(const SentencePieceModel& model) {
  TokenStrings texts;
  for (const ScoredPiece& piece : model.pieces) texts.Add(piece.text);
  TokenIndex reserved(texts, model.pieces.size()), others(texts, model.pieces.size());
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    (IsText(model.pieces[id]) ? others : reserved).Insert(static_cast<TokenId>(id));
  }
  for (const ScoredPiece& piece : model.pieces) {
    TokenId special = reserved.Find(piece.text);
    ids_.push_back(special != kNoToken ? special : others.Find(piece.text));
  }
  for (const ScoredPiece& piece : model.pieces) {
    const char* end = piece.text.data() + piece.text.size();
    for (const char* at = piece.text.data(); at != end;) {
      DecodedCharacter character = DecodeUtf8(at, end);
      std::string_view text(at, character.length);
      at += character.length;
      if (characters_[character.code] != kNoToken) continue;
      TokenId id = others.Find(text);
      if (id == kNoToken) id = reserved.Find(text);
      if (id == kNoToken) {
        id = static_cast<Symbol>(model.pieces.size() + lone_.size());
        lone_.push_back(character.code);
      }
      characters_.At(character.code) = id;
    }
  }
  if (options_.space_is_mark) {
    Symbol mark = SymbolOf(kSpaceMarkCode);
    characters_.At(' ') = mark < 0 ? kNoToken : mark;
  }
}

void SpmBpe::AddMerges(const SentencePieceModel& model) {
  if (model.merges) {
    merges_ = MergeTable(model.merges->size());
    // Of a pair that is listed twice the library keeps the last rank; the table keeps what is added first.
    auto rank = static_cast<std::uint32_t>(model.merges->size());
    for (const auto& merge : std::views::reverse(*model.merges)) {
      merges_.Add(merge.left, merge.right, {merge.merged, --rank});
    }
    return;
  }
  std::vector<std::uint32_t> ranks = Ranks(model.pieces);
  TokenStrings texts;
  for (const ScoredPiece& piece : model.pieces) texts.Add(piece.text);
  TokenIndex index(texts, model.pieces.size());
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    if (IsText(model.pieces[id])) index.Insert(static_cast<TokenId>(id));
  }
  auto symbol_of = [&](std::string_view text) {
    DecodedCharacter first = DecodeUtf8(text.data(), text.data() + text.size());
    return first.length == text.size() ? characters_[first.code] : index.Find(text);
  };
  std::vector<std::pair<std::pair<Symbol, Symbol>, MergeTable::Merge>> found;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    std::string_view piece = model.pieces[id].text;
    if (!Occurs(model.pieces[id])) continue;
    for (std::size_t at = 1; at < piece.size(); ++at) {
      if ((piece[at] & 0xC0) == 0x80) continue;
      Symbol left = symbol_of(piece.substr(0, at)), right = symbol_of(piece.substr(at));
      if (left == kNoToken || right == kNoToken) continue;
      found.push_back({{left, right}, {static_cast<Symbol>(id), ranks[id]}});
    }
  }
  merges_ = MergeTable(found.size());
  for (auto& [pair, merge] : found) merges_.Add(pair.first, pair.second, merge);
}

/// Returns true if the piece can occur in a text. A piece with a space cannot if spaces become marks.
bool SpmBpe::Occurs(const SentencePieceModel::ScoredPiece& piece) const {
  return IsText(piece) && !(options_.space_is_mark && piece.text.find(' ') != piece.text.npos);
}

void SpmBpe::AddAdjacent(std::string_view piece) {
  adjacent_.AddToken(piece);
  if (!options_.space_is_mark || piece.find(kSpaceMark) == piece.npos) return;
  adjacent_.AddToken(MarksToSpaces(piece));
  adjacent_.AddToken("\xE2\x96\x81 ");  // spaces and marks side by side
  adjacent_.AddToken(" \xE2\x96\x81");
}

void SpmBpe::Encode(std::string_view text, bool prefix, EncodeWorkspace& workspace, IdWriter& ids) const {
  if (text.empty()) return;
  std::size_t first = ids.size();
  if (!frozen_.empty()) {
    std::size_t done = 0;
    for (std::size_t at = 0; at < text.size();) {
      ByteTrie::Match match = frozen_.Longest(text.substr(at));
      if (match.length == 0) {
        at += DecodeUtf8(text.data() + at, text.data() + text.size()).length;
        continue;
      }
      EncodeStretch(text.substr(done, at - done), first, workspace, ids);
      ids.Append(match.value);
      done = at += match.length;
      if (ids.full()) return;
    }
    return EncodeStretch(text.substr(done), first, workspace, ids);
  }
  if (prefix) {
    // Copies only the first word, to put the prefix in front of it. The rest of the text is not copied.
    const char* end = text.data() + text.size();
    char32_t previous = ' ';
    const char* at = text.data();
    while (at != end) {
      DecodedCharacter character = DecodeUtf8(at, end);
      char32_t code = character.code == kInvalid ? kReplacement : character.code;
      if (at != text.data() && !adjacent_.MayJoin(previous, code)) break;
      previous = code;
      at += character.length;
    }
    auto length = static_cast<std::size_t>(at - text.data());
    workspace.text.assign(1, ' ').append(text.substr(0, length));
    EncodeStretch(workspace.text, first, workspace, ids);
    text.remove_prefix(length);
  }
  EncodeStretch(text, first, workspace, ids);
}

void SpmBpe::EncodeStretch(std::string_view text, std::size_t first, EncodeWorkspace& workspace, IdWriter& ids) const {
  const char *at = text.data(), *end = at + text.size(), *word = at, *last = at;
  char32_t previous = kInvalid;  // the character at `last`
  auto finish_word = [&] {
    std::size_t before = ids.size();
    if (word == last) {
      Emit(SymbolOf(previous), ids);  // most words of Chinese are one character, which needs no cache
    } else {
      EncodeWord({word, at}, end, workspace, ids,
                 [&](std::string_view unseen) { EncodeUnseen(unseen, workspace, ids); });
    }
    word = at;
    if (options_.fallback.to_bytes || before == first) return;
    // A run of unknown characters is one unknown token, also across words.
    TokenId unk = options_.fallback.unk;
    if (*ids.from(before - 1) != unk || *ids.from(before) != unk) return;
    std::copy(ids.from(before + 1), ids.from(ids.size()), ids.from(before));
    ids.Cut(ids.size() - 1);
  };
  while (at != end) {
    auto byte = static_cast<std::uint8_t>(*at);
    DecodedCharacter character{byte, 1};
    if (byte >= 0x80) {
      character = DecodeUtf8(at, end);
      if (character.code == kInvalid) character.code = kReplacement;
    }
    if (!adjacent_.MayJoin(previous, character.code)) {
      finish_word();
      if (ids.full()) return;
    }
    previous = character.code;
    last = at;
    at += character.length;
  }
  if (word != end) finish_word();
}

void SpmBpe::EncodeUnseen(std::string_view word, EncodeWorkspace& workspace, IdWriter& ids) const {
  std::vector<Symbol>& symbols = workspace.symbols;
  symbols.clear();
  for (const char *at = word.data(), *end = at + word.size(); at != end;) {
    DecodedCharacter character = DecodeUtf8(at, end);
    symbols.push_back(SymbolOf(character.code == kInvalid ? kReplacement : character.code));
    at += character.length;
  }
  std::size_t before = ids.size();
  TokenId unk = options_.fallback.to_bytes ? kNoToken : options_.fallback.unk;
  for (Symbol symbol : workspace.merger.Run(merges_, symbols)) {
    std::size_t at = ids.size();
    Emit(symbol, ids);
    if (at > before && *ids.from(at) == unk && *ids.from(at - 1) == unk) ids.Cut(at);
  }
}

void SpmBpe::Emit(Symbol symbol, IdWriter& ids) const {
  if (symbol >= 0 && static_cast<std::size_t>(symbol) < ids_.size()) return ids.Append(ids_[symbol]);
  if (!options_.fallback.to_bytes) return ids.Append(options_.fallback.unk);
  char32_t code = static_cast<char32_t>(-1 - symbol);
  if (symbol >= 0) code = lone_[static_cast<std::size_t>(symbol) - ids_.size()];
  if (code == ' ' && options_.space_is_mark) code = kSpaceMarkCode;
  char bytes[4];
  int count = EncodeUtf8(code, bytes);
  for (int i = 0; i < count; ++i) ids.Append(options_.fallback.bytes[static_cast<std::uint8_t>(bytes[i])]);
}

}  // namespace millrace::tokenizer
