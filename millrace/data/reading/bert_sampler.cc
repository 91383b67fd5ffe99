#include "millrace/data/reading/bert_sampler.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

namespace millrace::data {
namespace {

/// The key of the draws, apart from those of the order (order/plan.cc).
constexpr std::uint64_t kDrawPurpose = 5;
constexpr std::string_view kContinuation = "##";
constexpr std::array<std::string_view, 7> kSentenceEnds = {".", "!", "?", "…", "。", "！", "？"};

// Shares that decide what replaces a hidden token (Devlin et al. 2018, section 3.1). kBecomeMask of all hidden tokens
// become [MASK]. kStay of the others stay as they are, and the rest become random tokens.
constexpr double kBecomeMask = 0.8, kStay = 0.5;

Status CheckMasks(const MlmOptions& options, const BertTokens& tokens, std::string_view kind) {
  if (tokens.mask == tokenizer::kNoToken) {
    return Fail(Code::kInvalidArgument,
                "this tokenizer ({}) has no [MASK], which masked words become; choose a tokenizer of BERT", kind);
  }
  if (!(options.probability > 0 && options.probability < 1)) {
    return Fail(Code::kInvalidArgument, "a share of {} masked tokens is not between 0 and 1", options.probability);
  }
  if (!(options.short_sequences >= 0 && options.short_sequences <= 1)) {
    return Fail(Code::kInvalidArgument, "a share of {} short sequences is not one of 0 to 1", options.short_sequences);
  }
  if (options.max_predictions == 0U) {
    return Fail(Code::kInvalidArgument, "with max_predictions: 0 there is nothing to learn; set at least 1");
  }
  return {};
}

}  // namespace

std::pair<std::size_t, std::size_t> ShortenPair(std::size_t a, std::size_t b, std::size_t room) {
  if (a + b <= room) return {a, b};
  std::size_t shorter = std::min(a, b), longer;
  // The longer text shrinks first. Once both are equally long, they share the room.
  if (2 * shorter <= room) {
    longer = room - shorter;
  } else {
    shorter = room / 2;
    longer = room - shorter;
  }
  return a > b ? std::pair{longer, shorter} : std::pair{shorter, longer};
}

void WriteBertRow(std::span<const TokenId> a, std::span<const TokenId> b, const BertTokens& tokens, SequenceRow& row) {
  const bool adds = tokens.cls != tokenizer::kNoToken;
  const std::size_t first = a.size() + (adds ? 2 : 0), used = first + (b.empty() ? 0 : b.size() + (adds ? 1 : 0));
  assert(used <= row.inputs.size());
  auto at = row.inputs.begin();
  if (adds) *at++ = tokens.cls;
  at = std::ranges::copy(a, at).out;
  if (adds) *at++ = tokens.sep;
  if (!b.empty()) {
    at = std::ranges::copy(b, at).out;
    if (adds) *at++ = tokens.sep;
  }
  std::fill(at, row.inputs.end(), tokens.pad);
  std::ranges::fill(row.labels, kIgnoreLabel);
  row.length = static_cast<std::int32_t>(used);
  if (!row.segments.empty()) {
    std::ranges::fill(row.segments, 0);
    std::ranges::fill(row.segments.subspan(first, used - first), 1);
  }
  if (!row.positions.empty()) {
    auto text = row.positions.first(used), padding = row.positions.subspan(used);
    std::iota(text.begin(), text.end(), 0);
    std::iota(padding.begin(), padding.end(), 0);
  }
}

Result<BertSampler> BertSampler::Make(const DatasetOptions& options, const tokenizer::Tokenizer& tokenizer) {
  BertSampler made;
  const bool masks = options.objective == Objective::kMlm;
  made.tokens_ = MR_TRY(masks ? BertTokens::Find(tokenizer) : BertTokens::FindForClasses(tokenizer));
  made.mlm_ = options.mlm;
  made.vocab_size_ = tokenizer.vocab_size();
  const bool pairs = masks ? options.mlm.next_sentence : !options.classification.pair.empty();
  // Each text of a pair has at least one token.
  const int texts = pairs ? 2 : 1, special = made.tokens_.added(texts);
  if (options.sequence_length < special + texts) {
    return Fail(Code::kInvalidArgument, "a sequence length of {} leaves no room for texts between [CLS] and [SEP]",
                options.sequence_length);
  }
  made.text_tokens_ = static_cast<std::size_t>(options.sequence_length - special);
  if (!masks) return made;

  MR_TRY(CheckMasks(options.mlm, made.tokens_, tokenizer.kind()));
  made.max_predictions_ = options.mlm.max_predictions.value_or(
      static_cast<std::uint32_t>(std::ceil(options.mlm.probability * options.sequence_length)));
  bool any_continues = false;
  made.traits_.resize(static_cast<std::size_t>(made.vocab_size_));
  for (TokenId id = 0; id < made.vocab_size_; ++id) {
    const std::string piece = MR_TRY(tokenizer.Piece(id));
    std::uint8_t& traits = made.traits_[static_cast<std::size_t>(id)];
    if (piece.starts_with(kContinuation) && piece.size() > kContinuation.size()) traits |= kContinuesWord;
    if (std::ranges::find(kSentenceEnds, piece) != kSentenceEnds.end()) traits |= kEndsSentence;
    any_continues |= (traits & kContinuesWord) != 0;
  }
  if (options.mlm.whole_word && !any_continues) {
    return Fail(Code::kInvalidArgument,
                "whole_word needs a vocabulary that marks the pieces inside words by ##, which this tokenizer ({}) "
                "does not do",
                tokenizer.kind());
  }
  return made;
}

Random BertSampler::DrawOf(std::uint64_t seed, std::uint64_t epoch, std::uint64_t index) {
  std::uint64_t key = Mix64(seed);
  for (std::uint64_t word : {kDrawPurpose, epoch, index}) key = Mix64(key + word);
  return Random(key);
}

void BertSampler::WriteClass(const EncodedDocument& document, SequenceRow& row) const {
  const auto ids = std::span(document.ids);
  const auto [a, b] = ShortenPair(document.first_text, ids.size() - document.first_text, text_tokens_);
  WriteBertRow(ids.first(a), ids.subspan(document.first_text, b), tokens_, row);
  row.row_label = document.label;
}

std::size_t BertSampler::CutPoint(std::span<const TokenId> piece, Random& draw) const {
  std::vector<std::uint32_t> sentences, words;
  for (std::uint32_t i = 1; i < piece.size(); ++i) {
    if (Has(piece[i], kContinuesWord)) continue;
    words.push_back(i);
    if (Has(piece[i - 1], kEndsSentence)) sentences.push_back(i);
  }
  const auto& places = sentences.empty() ? words : sentences;
  return places.empty() ? 1 + draw.Below(piece.size() - 1) : places[draw.Below(places.size())];
}

std::size_t BertSampler::BeginOfSentence(std::span<const TokenId> text, std::size_t at) const {
  std::size_t word = at;
  while (word > 0 && at - word < text_tokens_ && Has(text[word], kContinuesWord)) --word;
  for (std::size_t begin = at; at - begin < text_tokens_; --begin) {
    if (begin == 0 || (Has(text[begin - 1], kEndsSentence) && !Has(text[begin], kContinuesWord))) return begin;
  }
  return word;
}

BertSampler::TextPair BertSampler::Cut(std::span<const TokenId> piece, Random& draw) const {
  if (draw.Uniform() < mlm_.short_sequences && text_tokens_ > 2) {
    const std::size_t target = std::min(piece.size(), 2 + draw.Below(text_tokens_ - 1));
    piece = piece.subspan(draw.Below(piece.size() - target + 1), target);
  }
  if (!mlm_.next_sentence) return {.a = piece};
  if (piece.size() == 1) return {.a = piece, .wanted = 1, .row_label = 1};
  const bool random = draw.Uniform() < 0.5;
  const std::size_t cut = CutPoint(piece, draw);
  if (random) return {.a = piece.first(cut), .wanted = piece.size() - cut, .row_label = 1};
  return {.a = piece.first(cut), .b = piece.subspan(cut), .row_label = 0};
}

void BertSampler::TakeRandom(std::span<const TokenId> other, TextPair& pair, Random& draw) const {
  const std::size_t begin = BeginOfSentence(other, draw.Below(other.size()));
  pair.b = other.subspan(begin, std::min(std::exchange(pair.wanted, 0), other.size() - begin));
}

void BertSampler::GiveUp(TextPair& pair) {
  pair.wanted = 0;
  pair.row_label = kIgnoreLabel;
}

std::vector<std::uint32_t> BertSampler::WordsOf(const SequenceRow& row) const {
  std::vector<std::uint32_t> words;
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(row.length); ++i) {
    const TokenId id = row.inputs[i];
    if (id == tokens_.cls || id == tokens_.sep) continue;
    const bool continues = mlm_.whole_word && Has(id, kContinuesWord) && row.inputs[i - 1] != tokens_.cls &&
                           row.inputs[i - 1] != tokens_.sep;
    if (!continues) words.push_back(i);
  }
  return words;
}

void BertSampler::Mask(Random& draw, SequenceRow& row) const {
  const double share = mlm_.probability * row.length;
  const std::size_t wanted =
      std::min(max_predictions_, std::max<std::size_t>(1, static_cast<std::size_t>(std::llround(share))));
  std::vector<std::uint32_t> words = WordsOf(row);
  auto end_of = [&](std::uint32_t begin) {
    std::uint32_t end = begin + 1;
    while (mlm_.whole_word && Has(row.inputs[end], kContinuesWord)) ++end;
    return end;
  };
  std::vector<std::pair<std::uint32_t, std::uint32_t>> chosen;
  std::size_t hidden = 0;
  for (std::size_t i = 0; i < words.size() && hidden < wanted; ++i) {
    std::swap(words[i], words[i + draw.Below(words.size() - i)]);
    const std::uint32_t begin = words[i], end = end_of(begin);
    if (hidden + (end - begin) > wanted) continue;
    hidden += end - begin;
    chosen.emplace_back(begin, end);
  }
  for (const auto& [begin, end] : chosen) {
    for (std::uint32_t i = begin; i < end; ++i) {
      row.labels[i] = row.inputs[i];
      if (draw.Uniform() < kBecomeMask) {
        row.inputs[i] = tokens_.mask;
      } else if (draw.Uniform() >= kStay) {
        row.inputs[i] = static_cast<TokenId>(draw.Below(static_cast<std::uint64_t>(vocab_size_)));
      }
    }
  }
}

void BertSampler::WriteMasked(const TextPair& pair, Random& draw, SequenceRow& row) const {
  WriteBertRow(pair.a, pair.b, tokens_, row);
  row.row_label = pair.row_label;
  Mask(draw, row);
}

}  // namespace millrace::data
