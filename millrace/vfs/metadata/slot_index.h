// A hash index of the slots of a table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace millrace::vfs {

/// A hash table of slot numbers below 2^32 - 1. It holds neither keys nor hashes: the caller compares and hashes what
/// is in the slots. Open addressing with linear probing. Takes 5 to 10 bytes a slot. Not thread-safe.
class SlotIndex {
 public:
  static constexpr std::uint32_t kNone = ~0U;

  /// Returns the slot of that hash for which `matches(slot)`, or kNone.
  template <class Matches>
  std::uint32_t Find(std::uint64_t hash, const Matches& matches) const {
    if (buckets_.empty()) return kNone;
    for (std::size_t at = Home(hash);; at = Next(at)) {
      if (buckets_[at] == kNone || matches(buckets_[at])) return buckets_[at];
    }
  }

  /// Adds a slot. REQUIRES: it is not in the index. `hash_of` gives the hash of any slot in the index.
  template <class HashOf>
  void Insert(std::uint32_t slot, const HashOf& hash_of) {
    if (5 * (size_ + 1) > 4 * buckets_.size()) Grow(hash_of);
    InsertUnchecked(slot, hash_of(slot));
    ++size_;
  }

  /// Removes a slot. REQUIRES: it is in the index, and its content has not changed.
  template <class HashOf>
  void Erase(std::uint32_t slot, const HashOf& hash_of) {
    std::size_t hole = Home(hash_of(slot));
    while (buckets_[hole] != slot) hole = Next(hole);
    // A later slot that Find would not reach across the hole moves into the hole.
    for (std::size_t at = Next(hole); buckets_[at] != kNone; at = Next(at)) {
      const std::size_t home = Home(hash_of(buckets_[at]));
      if (((at - home) & Mask()) < ((at - hole) & Mask())) continue;
      buckets_[hole] = buckets_[at];
      hole = at;
    }
    buckets_[hole] = kNone;
    --size_;
  }

 private:
  std::size_t Mask() const { return buckets_.size() - 1; }
  std::size_t Home(std::uint64_t hash) const { return hash & Mask(); }
  std::size_t Next(std::size_t at) const { return (at + 1) & Mask(); }

  void InsertUnchecked(std::uint32_t slot, std::uint64_t hash) {
    std::size_t at = Home(hash);
    while (buckets_[at] != kNone) at = Next(at);
    buckets_[at] = slot;
  }

  template <class HashOf>
  void Grow(const HashOf& hash_of) {
    std::vector<std::uint32_t> before(std::max<std::size_t>(16, 2 * buckets_.size()), kNone);
    before.swap(buckets_);
    for (std::uint32_t slot : before) {
      if (slot != kNone) InsertUnchecked(slot, hash_of(slot));
    }
  }

  std::vector<std::uint32_t> buckets_;  ///< their number is a power of two; at most four fifths are taken
  std::size_t size_ = 0;
};

}  // namespace millrace::vfs
