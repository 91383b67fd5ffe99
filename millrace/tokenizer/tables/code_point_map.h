// A table with a value for every code point, in two levels: a code point leads to its block, and the block has its
// value. Many blocks of 256 equal values share one memory.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace millrace::tokenizer {

/// Maps each code point to a value, with two reads of memory. A code point that was not set has the value `other`.
/// Immutable once filled; then any thread.
template <class T>
class CodePointMap {
 public:
  static constexpr std::uint32_t kBlock = 256, kBlocks = 0x110000 / kBlock;

  explicit CodePointMap(T other) : values_(kBlock, other) {}

  /// REQUIRES: `code` < 0x110000.
  T operator[](char32_t code) const { return values_[blocks_[code / kBlock] * kBlock + code % kBlock]; }

  /// Returns a reference through which to change a value. The value's block gets memory of its own.
  T& At(char32_t code) {
    std::uint16_t& block = blocks_[code / kBlock];
    if (block < kFirstOwned) block = AddBlock(&values_[block * kBlock]);
    return values_[block * kBlock + code % kBlock];
  }

  /// Sets all code points of the range [first, end). All whole blocks in the range share the memory of one block.
  /// REQUIRES: no later call changes a part of such a block.
  void Fill(char32_t first, char32_t end, T value) {
    std::uint16_t shared = 0;
    while (first < end) {
      if (first % kBlock != 0 || end - first < kBlock) {
        At(first++) = value;
        continue;
      }
      if (shared == 0) {
        std::array<T, kBlock> whole;
        whole.fill(value);
        shared = AddBlock(whole.data());
      }
      blocks_[first / kBlock] = shared;
      first += kBlock;
    }
  }

 private:
  std::uint16_t AddBlock(const T* from) {
    std::vector<T> copy(from, from + kBlock);
    values_.insert(values_.end(), copy.begin(), copy.end());
    return static_cast<std::uint16_t>(values_.size() / kBlock - 1);
  }

  static constexpr std::uint16_t kFirstOwned = 1;  // block 0 has only `other`, and all blocks begin as block 0
  std::array<std::uint16_t, kBlocks> blocks_{};
  std::vector<T> values_;
};

}  // namespace millrace::tokenizer
