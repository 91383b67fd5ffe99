// Random numbers. Code takes its generator or seed as an argument, so that every test and every shuffle can be
// repeated.
#pragma once

#include <cstdint>
#include <string>

namespace millrace {

/// Returns SplitMix64's finalizer of `x` (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014):
/// a bijection of 64-bit words that scatters neighbouring inputs. Its output is part of durable formats (the shuffle)
/// and never changes.
std::uint64_t Mix64(std::uint64_t x);

/// xoshiro256** (Blackman, Vigna 2018), seeded through SplitMix64. Not for keys or secrets. One owner, no locking.
class Random {
 public:
  explicit Random(std::uint64_t seed);
  std::uint64_t Next();
  /// Uniform in [0, bound), without modulo bias. REQUIRES: bound > 0.
  std::uint64_t Below(std::uint64_t bound);
  /// Uniform in [0, 1), with 53 random bits.
  double Uniform();

 private:
  std::uint64_t state_[4];
};

/// Returns 64 random bits from the kernel, for seeds and names that must differ from run to run.
std::uint64_t SystemEntropy();
/// Returns `bytes` random bytes from the kernel as lower-case hexadecimal text. Fit for keys and secrets.
std::string SecureHex(int bytes);

}  // namespace millrace
