// The mixing function behind random numbers and hashes, for the CPU and for kernels of GPUs.
#pragma once

#include <cstdint>

namespace millrace {

/// Returns SplitMix64's finalizer of `x` (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014):
/// a bijection of 64-bit words that scatters neighbouring inputs.
constexpr std::uint64_t MixBits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace millrace
