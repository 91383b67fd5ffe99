#include "millrace/data/compact/held_out_runs.h"

#include <algorithm>

#include "millrace/data/compact/word_hashes.h"

namespace millrace::data {
namespace {

constexpr std::size_t kFirstRunSlots = 1024;  // a guess: small, and a power of two

/// 0 marks an empty slot.
std::uint64_t NotZero(std::uint64_t run) { return run == 0 ? 1 : run; }

}  // namespace

void HeldOutRuns::Add(std::string_view text) {
  HashWords(text, words_);
  HashRuns(words_, length_, runs_);
  for (const std::uint64_t run : runs_) {
    if (2 * (used_ + 1) > slots_.size()) Grow();
    std::uint64_t& slot = slots_[SlotOf(NotZero(run))];
    used_ += slot == 0 ? 1 : 0;
    slot = NotZero(run);
  }
}

bool HeldOutRuns::Shares(const std::vector<std::uint64_t>& words, std::vector<std::uint64_t>& runs) const {
  if (used_ == 0) return false;
  HashRuns(words, length_, runs);
  return std::ranges::any_of(runs, [this](std::uint64_t run) { return slots_[SlotOf(NotZero(run))] != 0; });
}

std::size_t HeldOutRuns::SlotOf(std::uint64_t run) const {
  std::size_t at = run & (slots_.size() - 1);
  while (slots_[at] != 0 && slots_[at] != run) at = (at + 1) & (slots_.size() - 1);
  return at;
}

void HeldOutRuns::Grow() {
  std::vector<std::uint64_t> old(slots_.empty() ? kFirstRunSlots : 2 * slots_.size());
  old.swap(slots_);
  for (const std::uint64_t run : old) {
    if (run != 0) slots_[SlotOf(run)] = run;
  }
}

}  // namespace millrace::data
