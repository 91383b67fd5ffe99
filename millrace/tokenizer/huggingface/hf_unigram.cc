// Unigram models of tokenizer.json files, such as T5, XLM-R and mBART.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "millrace/tokenizer/huggingface/hf_model.h"
#include "millrace/tokenizer/tables/byte_trie.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer::hf {
namespace {

constexpr double kUnknownCharacterPenalty = 10.0;  // the library's K_UNK_PENALTY

/// Finds the segmentation of each word with the best sum of scores (Viterbi).
class UnigramModel final : public WordModel {
 public:
  UnigramModel(const TokenizerFile& file, TokenId unk) : vocabulary_(file), scores_(file.scores), unk_(unk) {
    std::vector<ByteTrie::Key> keys;
    for (TokenId id = 0; id < vocabulary_.strings().size(); ++id) {
      if (!vocabulary_.strings()[id].empty()) keys.push_back({vocabulary_.strings()[id], id});
    }
    trie_ = ByteTrie(std::move(keys));
    unknown_score_ = std::ranges::min(scores_) - kUnknownCharacterPenalty;
    bytes_.fill(kNoToken);
    for (std::size_t byte = 0; BoolMember(Member(file.json, "model"), "byte_fallback") && byte < bytes_.size();
         ++byte) {
      bytes_[byte] = vocabulary_.Find(fmt::format("<0x{:02X}>", byte));
    }
  }

  void Encode(std::string_view word, EncodeWorkspace& workspace, IdWriter& ids) const override {
    std::vector<WordPathNode>& path = workspace.word_path;
    FindBestPath(word, path);
    // Reverses the links of the best path, from the end to the beginning.
    const auto end = static_cast<std::uint32_t>(word.size());
    std::uint32_t after = end;
    for (std::uint32_t at = end; at != 0;) after = std::exchange(at, std::exchange(path[at].start, after));
    std::uint32_t unknown_from = end;  // start of the current run of unknown characters; end: no run
    for (std::uint32_t begin = 0, at = after;; begin = std::exchange(at, path[at].start)) {
      const bool unknown = path[at].id == unk_;
      if (unknown && unknown_from == end) unknown_from = begin;
      if (!unknown) {
        if (unknown_from != end) EmitUnknown(word.substr(unknown_from, begin - unknown_from), ids);
        unknown_from = end;
        ids.Append(path[at].id);
      }
      if (at != end) continue;
      if (unknown) EmitUnknown(word.substr(unknown_from), ids);
      return;
    }
  }

 private:
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
        offer(end, scores_[static_cast<std::size_t>(id)] + before, id, start);
      }
      if (!known) offer(start + length, unknown_score_ + before, unk_, start);
      start += length;
    }
  }

  /// Emits a run of unknown characters. As in the library, a token equal to the whole run counts.
  void EmitUnknown(std::string_view text, IdWriter& ids) const {
    if (const TokenId id = vocabulary_.Find(text); id != kNoToken) return ids.Append(id);
    auto has_token = [&](char byte) { return bytes_[static_cast<std::uint8_t>(byte)] != kNoToken; };
    if (!std::ranges::all_of(text, has_token)) return ids.Append(unk_);
    for (const char byte : text) ids.Append(bytes_[static_cast<std::uint8_t>(byte)]);
  }

  const ModelVocabulary vocabulary_;
  const std::vector<double> scores_;
  const TokenId unk_;
  ByteTrie trie_;
  std::array<TokenId, 256> bytes_{};  ///< kNoToken where there is none
  double unknown_score_ = 0;
};

}  // namespace

Result<std::unique_ptr<const WordModel>> ReadUnigramModel(const TokenizerFile& file) {
  const Json& unknown = Member(Member(file.json, "model"), "unk_id");
  if (!unknown.is_number_unsigned() || unknown.get<std::uint64_t>() >= file.scores.size()) {
    return Fail(Code::kUnsupported, "a Unigram model without an unk_id is not supported");
  }
  return std::make_unique<UnigramModel>(file, unknown.get<TokenId>());
}

}  // namespace millrace::tokenizer::hf
