#include "millrace/base/hash/random.h"

#include <sys/random.h>

#include <cstdlib>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/hash/mix.h"
#include "millrace/base/hash/text_encoding.h"

namespace millrace {
namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;  // 2^64 divided by the golden ratio, as in SplitMix64

std::uint64_t RotateLeft(std::uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }

void FillFromKernel(MutableByteSpan into) {
  // getrandom gives up to 256 bytes at once without being interrupted; it cannot fail once the pool is initialised.
  for (std::size_t done = 0; done < into.size();) {
    ssize_t n = getrandom(into.data() + done, into.size() - done, 0);
    if (n < 0) std::abort();
    done += static_cast<std::size_t>(n);
  }
}

}  // namespace

std::uint64_t Mix64(std::uint64_t x) { return MixBits(x); }

Random::Random(std::uint64_t seed) {
  for (std::uint64_t& word : state_) word = Mix64(seed += kGolden);
}

std::uint64_t Random::Next() {
  std::uint64_t result = RotateLeft(state_[1] * 5, 7) * 9, t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = RotateLeft(state_[3], 45);
  return result;
}

std::uint64_t Random::Below(std::uint64_t bound) {
  // Lemire, "Fast Random Integer Generation in an Interval" (2019): reject the few products that would bias.
  auto product = static_cast<unsigned __int128>(Next()) * bound;
  if (static_cast<std::uint64_t>(product) < bound) {
    std::uint64_t threshold = -bound % bound;
    while (static_cast<std::uint64_t>(product) < threshold) product = static_cast<unsigned __int128>(Next()) * bound;
  }
  return static_cast<std::uint64_t>(product >> 64);
}

double Random::Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

std::uint64_t SystemEntropy() {
  std::byte bytes[8];
  FillFromKernel(bytes);
  return LoadLittle<std::uint64_t>(bytes);
}

std::string SecureHex(int bytes) {
  std::vector<std::byte> raw(static_cast<std::size_t>(bytes));
  FillFromKernel(raw);
  return HexEncode(raw);
}

}  // namespace millrace
