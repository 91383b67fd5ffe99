// Randomness is passed in, so that every test and every shuffle can be repeated.
#pragma once

#include <cstdint>
#include <string>

namespace millrace {

/// SplitMix64's finalizer (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014): a bijection of
/// 64-bit words that scatters neighbouring inputs. Part of durable formats (the shuffle): its output never changes.
std::uint64_t Mix64(std::uint64_t x);

/// xoshiro256** (Blackman, Vigna 2018), seeded through SplitMix64. Not for keys or secrets. One owner, no locking.
class Random {
 public:
  explicit Random(std::uint64_t seed);
  std::uint64_t Next();
  /// Uniform in [0, bound), without modulo bias; bound > 0.
  std::uint64_t Below(std::uint64_t bound);
  /// Uniform in [0, 1), 53 bits.
  double Uniform();

 private:
  std::uint64_t state_[4];
};

/// 64 bits from the kernel, for seeds of things that must differ from run to run.
std::uint64_t SystemEntropy();
/// `bytes` bytes from the kernel's generator as lower-case hex; fit for keys and secrets.
std::string SecureHex(int bytes);

}  // namespace millrace
