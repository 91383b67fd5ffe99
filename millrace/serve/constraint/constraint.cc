#include "millrace/serve/constraint/constraint.h"

#include <algorithm>
#include <charconv>
#include <limits>

namespace millrace::serve {
namespace {

/// Memory for what is known of states: vocabularies of 128,000 tokens take 16 KiB a state.
constexpr std::size_t kMaxMaskBytes = 32 * kMiB;
/// Work of one mask, in nodes of the grammar: some 50 ms, in which other texts wait.
constexpr std::int64_t kMaxMaskWork = 4'000'000;
/// Work of all masks of one text: some 20 s. Usual forms take a thousandth of that.
constexpr std::int64_t kMaxTextWork = 1'000'000'000;

/// SentencePiece and its kin write a space as "▁" and a byte as "<0x0A>".
std::string BytesOfPiece(std::string_view piece) {
  constexpr std::string_view kSpace = "▁";
  unsigned char byte = 0;
  if (piece.size() == 6 && piece.starts_with("<0x") && piece.ends_with('>') &&
      std::from_chars(piece.data() + 3, piece.data() + 5, byte, 16).ptr == piece.data() + 5) {
    return {static_cast<char>(byte)};
  }
  std::string bytes;
  while (!piece.empty()) {
    const bool space = piece.starts_with(kSpace);
    bytes += space ? ' ' : piece.front();
    piece.remove_prefix(space ? kSpace.size() : 1);
  }
  return bytes;
}

}  // namespace

TokenBytes::TokenBytes(const tokenizer::Tokenizer& tokenizer) : vocab_size_(tokenizer.vocab_size()) {
  const bool plain = tokenizer.kind() == "byte-bpe" || tokenizer.kind() == "bytes";
  for (TokenId token = 0; token < vocab_size_; ++token) {
    auto piece = tokenizer.Piece(token);
    if (!piece) continue;
    std::string bytes = plain ? *std::move(piece) : BytesOfPiece(*piece);
    // A special token has no text. Half a character has none by itself either, but its bytes say that.
    const bool whole = std::all_of(bytes.begin(), bytes.end(), [](char c) { return static_cast<signed char>(c) > 0; });
    if (whole && bytes != " ") {
      const auto text = tokenizer.Decode({&token, 1});
      if (!text || text->empty()) continue;
    }
    if (!bytes.empty()) entries_.push_back({.bytes = std::move(bytes), .token = token});
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.bytes != b.bytes ? a.bytes < b.bytes : a.token < b.token; });
  places_.assign(static_cast<std::size_t>(vocab_size_), -1);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    places_[static_cast<std::size_t>(entries_[i].token)] = static_cast<std::int32_t>(i);
    if (i == 0) continue;
    const std::string &a = entries_[i - 1].bytes, &b = entries_[i].bytes;
    const auto differ = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
    entries_[i].shared = static_cast<std::uint32_t>(differ - a.begin());
  }
}

const std::string& TokenBytes::BytesOf(TokenId token) const {
  static const std::string kNone;
  const bool known = token >= 0 && token < vocab_size_ && places_[static_cast<std::size_t>(token)] >= 0;
  return known ? entries_[static_cast<std::size_t>(places_[static_cast<std::size_t>(token)])].bytes : kNone;
}

Constraint::State Constraint::start() {
  MutexLock lock(mutex_);
  State state;
  state.arrival_ = machine_.start();
  Renew(state);
  return state;
}

bool Constraint::worn() const {
  MutexLock lock(mutex_);
  return machine_.stacks() >= GrammarMachine::kMaxStacks / 3;
}

std::size_t Constraint::bytes() const {
  MutexLock lock(mutex_);
  return machine_.bytes();
}

void Constraint::Renew(State& state) {
  const std::uint32_t before = machine_.generation();
  if (machine_.Trim() != before) allowed_.clear();
  if (state.number_ != GrammarMachine::kDead && state.generation_ == machine_.generation()) return;
  state.number_ = machine_.Number(state.arrival_);
  state.generation_ = machine_.generation();
}

bool Constraint::Allow(GrammarMachine::State state, std::size_t most_bytes, std::int64_t most_work, Allowed& allowed) {
  const std::int64_t before = machine_.work();
  std::fill(allowed.tokens.begin(), allowed.tokens.end(), 0);
  // Tokens in the order of their bytes: each goes on where the shared beginning with the one before ends.
  std::vector<GrammarMachine::State> path = {state};  // behind each byte of the token before, as far as it is not dead
  for (const TokenBytes::Entry& entry : vocabulary_->entries()) {
    if (entry.shared + 1 < path.size()) path.resize(entry.shared + 1);
    if (entry.bytes.size() > most_bytes) continue;
    while (path.size() <= entry.bytes.size() && path.back() != GrammarMachine::kDead) {
      path.push_back(machine_.Next(path.back(), static_cast<unsigned char>(entry.bytes[path.size() - 1])));
      if (machine_.work() - before > most_work) return false;
    }
    if (path.size() <= entry.bytes.size() || path.back() == GrammarMachine::kDead) continue;
    allowed.tokens[static_cast<std::size_t>(entry.token) / 64] |= std::uint64_t{1} << (entry.token % 64);
  }
  return true;
}

const Constraint::Allowed& Constraint::AllowedIn(GrammarMachine::State state) {
  const auto known = allowed_.find(state);
  if (known != allowed_.end()) return known->second;
  const auto words = (static_cast<std::size_t>(vocabulary_->vocab_size()) + 63) / 64;
  if (allowed_.size() * words * 8 > kMaxMaskBytes) allowed_.clear();
  Allowed& allowed = allowed_[state];
  allowed.tokens.resize(words);
  machine_.BeginRound();
  // Short tokens spell every text that fits, so a text goes on where long ones would take too long to look at.
  const std::size_t places = machine_.ArrivalOf(state)->places.size();
  const bool crowded = static_cast<std::int64_t>(places) * 256 > kMaxMaskWork;
  if (crowded || (!Allow(state, std::numeric_limits<std::size_t>::max(), kMaxMaskWork, allowed) &&
                  !Allow(state, 4, kMaxMaskWork, allowed))) {
    Allow(state, 1, std::numeric_limits<std::int64_t>::max(), allowed);
  }
  allowed.work = machine_.work();
  return allowed;
}

bool Constraint::Mask(State& state, std::span<const TokenId> ends, std::span<float> logits) {
  MutexLock lock(mutex_);
  Renew(state);
  if (state.dead() || state.work_ > kMaxTextWork) return false;
  const Allowed& allowed = AllowedIn(state.number_);
  state.work_ += allowed.work;
  const bool may_end = state.arrival_->accepts;
  bool any = false;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto token = static_cast<TokenId>(i);
    const bool fits = (i / 64 < allowed.tokens.size() && ((allowed.tokens[i / 64] >> (i % 64)) & 1) != 0) ||
                      (may_end && std::find(ends.begin(), ends.end(), token) != ends.end());
    if (!fits) logits[i] = -std::numeric_limits<float>::infinity();
    any = any || fits;
  }
  return any;
}

Constraint::State Constraint::Accept(State state, TokenId token) {
  MutexLock lock(mutex_);
  Renew(state);
  const std::string& bytes = vocabulary_->BytesOf(token);
  GrammarMachine::State number = bytes.empty() ? GrammarMachine::kDead : state.number_;
  for (const char byte : bytes) {
    if (number == GrammarMachine::kDead) break;
    number = machine_.Next(number, static_cast<unsigned char>(byte));
  }
  state.number_ = number;
  state.arrival_ = machine_.ArrivalOf(number);
  return state;
}

}  // namespace millrace::serve
