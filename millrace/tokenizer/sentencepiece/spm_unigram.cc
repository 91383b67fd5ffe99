#include "millrace/tokenizer/sentencepiece/spm_unigram.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {
namespace {

using Type = SentencePieceModel::Type;

// Both are the library's.
constexpr float kUnknownPenalty = 10.0F;
constexpr float kLargestSum = 100'000.0F;

/// Returns the library's score of a user-defined piece, which beats every segmentation of its text.
float UserDefinedScore(std::size_t bytes) { return static_cast<float>(0.1 * (static_cast<double>(bytes) - 1)); }

/// Subtracts the sum at `start` from all later sums, so that sums of long texts keep their low digits.
void StartSumsAfresh(std::size_t start, std::size_t frontier, std::vector<PathNode>& path) {
  float sum = path[start].score;
  for (std::size_t i = start; i <= frontier; ++i) {
    if (i == start || path[i].id != kNoToken) path[i].score -= sum;
  }
}

}  // namespace

SpmUnigram::SpmUnigram(const SentencePieceModel& model, const SpmFallback& fallback)
    : fallback_(fallback), space_is_mark_(model.traits.escape_whitespaces), scores_(model.pieces.size()) {
  float lowest = std::numeric_limits<float>::max();
  for (const auto& piece : model.pieces) {
    if (piece.type == Type::kNormal) lowest = std::min(lowest, piece.score);
  }
  unknown_score_ = lowest - kUnknownPenalty;
  std::vector<std::string> texts(model.pieces.size());
  std::vector<ByteTrie::Key> keys;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    if (piece.type != Type::kNormal && piece.type != Type::kUserDefined) continue;
    // If spaces become marks, a piece with a space cannot occur.
    if (space_is_mark_ && piece.text.find(' ') != piece.text.npos) continue;
    texts[id] = space_is_mark_ ? MarksToSpaces(piece.text) : std::string(piece.text);
    keys.push_back({texts[id], static_cast<std::int32_t>(id)});
    scores_[id] = piece.type == Type::kNormal ? piece.score : UserDefinedScore(piece.text.size());
  }
  trie_ = ByteTrie(std::move(keys));
}

void SpmUnigram::FindBestPath(std::string_view text, std::vector<PathNode>& path) const {
  path.assign(text.size() + 1, {});
  std::size_t frontier = 0;  // no path reaches beyond this position
  for (std::size_t start = 0; start < text.size();) {
    if (std::abs(path[start].score) > kLargestSum) StartSumsAfresh(start, frontier, path);
    float before = path[start].score;
    std::size_t length = DecodeUtf8(text.data() + start, text.data() + text.size()).length;
    bool known = false;
    std::int32_t state = 0;
    for (std::size_t end = start; end < text.size();) {
      state = trie_.Step(state, text[end++]);
      if (state == ByteTrie::kNone) break;
      TokenId id = trie_.Value(state);
      if (id == ByteTrie::kNone) continue;
      known |= end - start == length;
      frontier = std::max(frontier, end);
      PathNode& node = path[end];
      float score = scores_[static_cast<std::size_t>(id)] + before;
      if (node.id == kNoToken || score > node.score) node = {score, id, static_cast<std::uint32_t>(start)};
    }
    std::size_t after = start + length;
    if (!known) {
      frontier = std::max(frontier, after);
      float score = unknown_score_ + before;
      if (PathNode& node = path[after]; node.id == kNoToken || score > node.score) {
        node = {score, fallback_.unk, static_cast<std::uint32_t>(start)};
      }
    }
    start = after;
  }
}

void SpmUnigram::Encode(std::string_view text, EncodeWorkspace& workspace, IdWriter& ids) const {
  if (text.empty()) return;
  std::vector<PathNode>& path = workspace.path;
  FindBestPath(text, path);
  // Reverses the links of the best path, from the end to the beginning.
  std::uint32_t end = static_cast<std::uint32_t>(text.size()), after = end;
  for (std::uint32_t at = end; at != 0;) {
    std::uint32_t start = path[at].start;
    path[at].start = after;
    after = at;
    at = start;
  }
  bool after_unknown = false;
  for (std::uint32_t begin = 0, at = after; !ids.full(); begin = at, at = path[at].start) {
    bool unknown = path[at].id == fallback_.unk;
    if (unknown) {
      EmitUnknown(text.substr(begin, at - begin), after_unknown, ids);
    } else {
      ids.Append(path[at].id);
    }
    after_unknown = unknown;
    if (at == end) break;
  }
}

void SpmUnigram::EmitUnknown(std::string_view character, bool after_unknown, IdWriter& ids) const {
  if (!fallback_.to_bytes) {
    if (!after_unknown) ids.Append(fallback_.unk);
    return;
  }
  std::string bytes(character);
  if (character == " " && space_is_mark_) {
    bytes.clear();
    AppendUtf8(kSpaceMarkCode, bytes);
  }
  for (char byte : bytes) ids.Append(fallback_.bytes[static_cast<std::uint8_t>(byte)]);
}

}  // namespace millrace::tokenizer
