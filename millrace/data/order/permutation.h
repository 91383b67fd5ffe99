// A shuffle that needs no array.
#pragma once

#include <bit>
#include <cstdint>

#include "millrace/base/hash/random.h"

namespace millrace::data {

/// A bijection of [0, size) that `key` chooses. It is an unbalanced Feistel network on the fewest bits that hold the
/// domain, with Mix64 as its round function. It walks in cycles until the image falls into the domain (Black, Rogaway:
/// "Ciphers with Arbitrary Finite Domains", 2002), fewer than two steps on average. Takes constant memory. It is not a
/// cipher: it scatters and does not hide. Part of the order of every run: the results never change.
class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t key) : size_(size), key_(key) {
    int bits = size > 1 ? std::bit_width(size - 1) : 1;
    low_bits_ = (bits + 1) / 2;
    low_mask_ = (std::uint64_t{1} << low_bits_) - 1;
    high_mask_ = (std::uint64_t{1} << (bits - low_bits_)) - 1;
  }

  /// Returns the permutation that maps every i to itself.
  static Permutation Identity(std::uint64_t size) {
    Permutation identity(size, 0);
    identity.scatters_ = false;
    return identity;
  }

  std::uint64_t size() const { return size_; }

  /// Returns the image of `i`. REQUIRES: i < size().
  std::uint64_t operator()(std::uint64_t i) const {
    if (size_ <= 1 || !scatters_) return i;
    do i = Scatter(i);
    while (i >= size_);
    return i;
  }

 private:
  static constexpr int kRounds = 6;  ///< a guess: twice the rounds of Luby and Rackoff's proof

  std::uint64_t Scatter(std::uint64_t i) const {
    std::uint64_t low = i & low_mask_, high = i >> low_bits_;
    for (int round = 0; round < kRounds; round += 2) {
      high ^= Mix64(key_ + Mix64((low << 8) + round)) & high_mask_;
      low ^= Mix64(key_ + Mix64((high << 8) + round + 1)) & low_mask_;
    }
    return high << low_bits_ | low;
  }

  std::uint64_t size_, key_;
  bool scatters_ = true;
  int low_bits_;
  std::uint64_t low_mask_, high_mask_;
};

}  // namespace millrace::data
