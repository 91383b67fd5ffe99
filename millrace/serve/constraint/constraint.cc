#include "millrace/serve/constraint/constraint.h"

#include <algorithm>
#include <limits>

namespace millrace::serve {
namespace {

/// Memory for what is known of states: vocabularies of 128,000 tokens take 16 KiB a state.
constexpr std::size_t kMaxMaskBytes = 64 * kMiB;

}  // namespace

Constraint::State Constraint::start() const {
  MutexLock lock(mutex_);
  return machine_.start();
}

bool Constraint::worn() const {
  MutexLock lock(mutex_);
  return machine_.states() >= GrammarMachine::kMaxStates / 3;
}

const Constraint::Allowed& Constraint::AllowedIn(State state) {
  const auto known = allowed_.find(state);
  if (known != allowed_.end()) return known->second;
  const auto words = (static_cast<std::size_t>(vocabulary_->vocab_size()) + 63) / 64;
  if (allowed_.size() * words * 8 > kMaxMaskBytes) allowed_.clear();
  Allowed& allowed = allowed_[state];
  allowed.assign(words, 0);
  // Tokens in the order of their bytes: each goes on where the shared beginning with the one before ends.
  std::vector<State> path = {state};  // behind each byte of the token before, as far as it is not dead
  for (const TokenBytes::Entry& entry : vocabulary_->entries()) {
    if (entry.shared + 1 < path.size()) path.resize(entry.shared + 1);
    while (path.size() <= entry.bytes.size() && path.back() != GrammarMachine::kDead) {
      path.push_back(machine_.Next(path.back(), static_cast<unsigned char>(entry.bytes[path.size() - 1])));
    }
    if (path.size() <= entry.bytes.size() || path.back() == GrammarMachine::kDead) continue;
    allowed[static_cast<std::size_t>(entry.token) / 64] |= std::uint64_t{1} << (entry.token % 64);
  }
  return allowed;
}

bool Constraint::Mask(State state, std::span<const TokenId> ends, std::span<float> logits) {
  MutexLock lock(mutex_);
  if (state == GrammarMachine::kDead) return false;
  const Allowed& allowed = AllowedIn(state);
  const bool may_end = machine_.Accepts(state);
  bool any = false;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto token = static_cast<TokenId>(i);
    const bool fits = (i / 64 < allowed.size() && ((allowed[i / 64] >> (i % 64)) & 1) != 0) ||
                      (may_end && std::find(ends.begin(), ends.end(), token) != ends.end());
    if (!fits) logits[i] = -std::numeric_limits<float>::infinity();
    any = any || fits;
  }
  return any;
}

Constraint::State Constraint::Accept(State state, TokenId token) {
  MutexLock lock(mutex_);
  const std::string& bytes = vocabulary_->BytesOf(token);
  if (bytes.empty()) return GrammarMachine::kDead;
  for (const char byte : bytes) {
    if (state == GrammarMachine::kDead) break;
    state = machine_.Next(state, static_cast<unsigned char>(byte));
  }
  return state;
}

}  // namespace millrace::serve
