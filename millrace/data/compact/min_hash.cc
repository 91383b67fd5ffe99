#include "millrace/data/compact/min_hash.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "millrace/base/hash/random.h"

namespace millrace::data {
namespace {

constexpr double kRecall = 0.95;  ///< the share of pairs at the threshold that become candidates

/// Hash function i maps x to factor[i] · x + offset[i] modulo 2^32, a bijection since the factor is odd.
struct HashFunctions {
  std::array<std::uint32_t, kMinHashes> factor{}, offset{};
};

HashFunctions MakeHashFunctions() {
  HashFunctions functions;
  Random random(0x4D696E48617368);  // any fixed seed
  for (std::size_t i = 0; i < kMinHashes; ++i) {
    functions.factor[i] = static_cast<std::uint32_t>(random.Next()) | 1;
    functions.offset[i] = static_cast<std::uint32_t>(random.Next());
  }
  return functions;
}

/// Eight values, as AVX2 has them in a register. Other processors compute them in several.
using Lanes = std::uint32_t __attribute__((vector_size(32)));
constexpr std::size_t kLanes = sizeof(Lanes) / sizeof(std::uint32_t);
/// Vectors of values that stay in registers over all elements, with their factors and offsets: 12 of AVX2's 16. The set
/// is read once for each block, but no value is loaded or stored in between.
constexpr std::size_t kBlock = 4;
static_assert(kMinHashes % (kBlock * kLanes) == 0);

[[gnu::always_inline]] inline void LowerTo(const HashFunctions& functions, std::span<const std::uint64_t> elements,
                                           MinHashValues& values) {
  for (std::size_t first = 0; first < kMinHashes; first += kBlock * kLanes) {
    std::array<Lanes, kBlock> factor, offset, least;
    std::memcpy(factor.data(), &functions.factor[first], sizeof factor);
    std::memcpy(offset.data(), &functions.offset[first], sizeof offset);
    std::memcpy(least.data(), &values[first], sizeof least);
    for (const std::uint64_t element : elements) {
      const auto x = static_cast<std::uint32_t>(element);
#pragma GCC unroll 4
      for (std::size_t i = 0; i < kBlock; ++i) {
        const Lanes hash = factor[i] * x + offset[i];
        least[i] = hash < least[i] ? hash : least[i];
      }
    }
    std::memcpy(&values[first], least.data(), sizeof least);
  }
}

using LowerFunction = void (*)(const HashFunctions&, std::span<const std::uint64_t>, MinHashValues&);

#if defined(__x86_64__)
__attribute__((target("avx2"))) void LowerToAvx2(const HashFunctions& functions,
                                                 std::span<const std::uint64_t> elements, MinHashValues& values) {
  LowerTo(functions, elements, values);
}
#endif
void LowerToAny(const HashFunctions& functions, std::span<const std::uint64_t> elements, MinHashValues& values) {
  LowerTo(functions, elements, values);
}

LowerFunction ChooseLowerFunction() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return LowerToAvx2;
#endif
  return LowerToAny;
}

}  // namespace

MinHashValues MinHash(std::span<const std::uint64_t> elements) {
  static const HashFunctions functions = MakeHashFunctions();
  static const LowerFunction lower = ChooseLowerFunction();
  MinHashValues values;
  values.fill(std::numeric_limits<std::uint32_t>::max());
  lower(functions, elements, values);
  return values;
}

MinHashSignature ToSignature(const MinHashValues& values) {
  MinHashSignature signature{};
  // The least values of large sets are all small. Mix64 makes every bit of the signature depend on every bit of them.
  for (std::size_t i = 0; i < kMinHashes; ++i) signature[i] = static_cast<std::uint16_t>(Mix64(values[i]));
  return signature;
}

double EstimateSimilarity(const MinHashSignature& a, const MinHashSignature& b) {
  std::uint16_t equal = 0;
  for (std::size_t i = 0; i < kMinHashes; ++i) equal = static_cast<std::uint16_t>(equal + (a[i] == b[i] ? 1 : 0));
  return static_cast<double>(equal) / static_cast<double>(kMinHashes);
}

Banding Banding::For(double threshold) {
  for (std::size_t rows = kMinHashes; rows > 1; --rows) {
    const Banding banding{kMinHashes / rows, rows};
    if (banding.Probability(threshold) >= kRecall) return banding;
  }
  return {kMinHashes, 1};
}

double Banding::Probability(double similarity) const {
  const double band = std::pow(similarity, static_cast<double>(rows));
  return 1 - std::pow(1 - band, static_cast<double>(bands));
}

void AppendBandHashes(const MinHashValues& values, Banding banding, std::vector<std::uint32_t>& into) {
  for (std::size_t band = 0; band < banding.bands; ++band) {
    std::uint64_t hash = band;
    for (std::size_t row = 0; row < banding.rows; ++row) hash = Mix64(hash) ^ values[band * banding.rows + row];
    into.push_back(static_cast<std::uint32_t>(Mix64(hash) >> 32));
  }
}

}  // namespace millrace::data
