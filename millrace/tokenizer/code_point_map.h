// A value for every code point, in two stages: blocks of 256 that are all alike share their memory.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace millrace::tokenizer {

template <class T>
class CodePointMap {
 public:
  static constexpr std::uint32_t kBlock = 256, kBlocks = 0x110000 / kBlock;

  explicit CodePointMap(T other) : values_(kBlock, other) {}

  /// `code` < 0x110000.
  T operator[](char32_t code) const { return values_[blocks_[code / kBlock] * kBlock + code % kBlock]; }

  T& At(char32_t code) {
    std::uint16_t& block = blocks_[code / kBlock];
    if (block == 0) {
      block = static_cast<std::uint16_t>(values_.size() / kBlock);
      values_.insert(values_.end(), kBlock, T(values_[0]));  // block 0 stays as it was made
    }
    return values_[block * kBlock + code % kBlock];
  }

 private:
  std::array<std::uint16_t, kBlocks> blocks_{};
  std::vector<T> values_;
};

}  // namespace millrace::tokenizer
