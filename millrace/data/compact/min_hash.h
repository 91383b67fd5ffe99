// MinHash: a signature of a fixed size for a set. The share of values in which two signatures agree estimates the
// Jaccard similarity of the sets, |A ∩ B| / |A ∪ B|.
//
// Sources: A. Broder, "On the resemblance and containment of documents", 1997, for MinHash; Leskovec, Rajaraman and
// Ullman, "Mining of Massive Datasets", chapter 3, for bands; Li and König, "b-Bit Minwise Hashing", 2010, for
// signatures of short values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace::data {

/// Hash functions of a signature. 128, as most published pipelines have: the standard error of an estimate is at most
/// 0.044, and 0.035 at a similarity of 0.8.
inline constexpr std::size_t kMinHashes = 128;

/// The least value of each hash function over a set. UINT32_MAX if the set is empty.
using MinHashValues = std::array<std::uint32_t, kMinHashes>;

/// 16 bits of each value. Two different values agree in them once in 65,536 times, which does not matter beside the
/// standard error.
using MinHashSignature = std::array<std::uint16_t, kMinHashes>;

/// Returns the least value of each hash function over `elements`, hashes of 64 random bits. Equal elements count once.
/// Uses AVX2 if the processor has it; the result is the same.
MinHashValues MinHash(std::span<const std::uint64_t> elements);

MinHashSignature ToSignature(const MinHashValues& values);

/// Returns the share of values in which the signatures agree.
double EstimateSimilarity(const MinHashSignature& a, const MinHashSignature& b);

/// Locality-sensitive hashing: a signature is cut into `bands` bands of `rows` values. Two signatures that agree in a
/// whole band are candidates.
struct Banding {
  std::size_t bands = 0, rows = 0;

  /// Returns the bands with the most rows that find at least 95 % of the pairs whose similarity is `threshold`. More
  /// rows mean fewer candidates that are no duplicates. REQUIRES: 0 < threshold <= 1.
  static Banding For(double threshold);
  /// Returns the probability that two sets of this similarity become candidates.
  double Probability(double similarity) const;
};

/// Appends a hash of each band of the values. Different bands have different hashes, even of the same values.
void AppendBandHashes(const MinHashValues& values, Banding banding, std::vector<std::uint32_t>& into);

}  // namespace millrace::data
