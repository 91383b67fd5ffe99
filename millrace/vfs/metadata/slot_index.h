// Finds the slots of a table by what they hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace millrace::vfs {

/// A hash table of numbers below 2^32 - 1 that keeps neither keys nor hashes: whoever has the slots compares and hashes
/// what is in them. Open addressing with linear probing; 5 to 10 bytes a slot.
class SlotIndex {
 public:
  static constexpr std::uint32_t kNone = ~0U;

  /// The slot of that hash for which `matches(slot)`; kNone when there is none.
  template <class Matches>
  std::uint32_t Find(std::uint64_t hash, const Matches& matches) const {
    if (places_.empty()) return kNone;
    for (std::size_t at = Place(hash);; at = Next(at)) {
      if (places_[at] == kNone || matches(places_[at])) return places_[at];
    }
  }

  /// A slot that is not there yet. `hash_of(slot)`: of any that is.
  template <class HashOf>
  void Insert(std::uint32_t slot, const HashOf& hash_of) {
    if (5 * (size_ + 1) > 4 * places_.size()) Grow(hash_of);
    Settle(slot, hash_of(slot));
    ++size_;
  }

  /// A slot that is there, and still holds what it held.
  template <class HashOf>
  void Erase(std::uint32_t slot, const HashOf& hash_of) {
    std::size_t hole = Place(hash_of(slot));
    while (places_[hole] != slot) hole = Next(hole);
    // Those behind it that would not be found past a hole move into it.
    for (std::size_t at = Next(hole); places_[at] != kNone; at = Next(at)) {
      const std::size_t home = Place(hash_of(places_[at]));
      if (((at - home) & Mask()) < ((at - hole) & Mask())) continue;
      places_[hole] = places_[at];
      hole = at;
    }
    places_[hole] = kNone;
    --size_;
  }

 private:
  std::size_t Mask() const { return places_.size() - 1; }
  std::size_t Place(std::uint64_t hash) const { return hash & Mask(); }
  std::size_t Next(std::size_t place) const { return (place + 1) & Mask(); }

  void Settle(std::uint32_t slot, std::uint64_t hash) {
    std::size_t at = Place(hash);
    while (places_[at] != kNone) at = Next(at);
    places_[at] = slot;
  }

  template <class HashOf>
  void Grow(const HashOf& hash_of) {
    std::vector<std::uint32_t> before(std::max<std::size_t>(16, 2 * places_.size()), kNone);
    before.swap(places_);
    for (std::uint32_t slot : before) {
      if (slot != kNone) Settle(slot, hash_of(slot));
    }
  }

  std::vector<std::uint32_t> places_;  ///< a power of two; at most four fifths are taken
  std::size_t size_ = 0;
};

}  // namespace millrace::vfs
