// Interleaves the samples of several sources, by arithmetic. The shares are right in every prefix.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::data {

/// A sample of one source.
struct SourceSample {
  std::uint32_t source = 0;
  std::uint64_t number = 0;  ///< among the source's samples of the epoch
  bool operator==(const SourceSample&) const = default;
};

/// An epoch holds `counts[s]` samples of source s. The j-th of them lies at time (j + 1/2) / counts[s]. The epoch's
/// order is that of the times; samples with equal times come in the order of their sources. Let p be counts[s] /
/// samples(), and S the number of sources. The first n samples then have n·p of source s, with an error of at most
/// (1 - p) / 2 + p·(S - 1) / 2. For two sources that is one half.
/// Takes no memory beside the counts. Immutable; any thread may call any method. Part of the order of every run: the
/// results never change.
class Blend {
 public:
  /// REQUIRES: the sum of `counts` is at most 2^62.
  explicit Blend(std::vector<std::uint64_t> counts);

  std::uint64_t samples() const { return samples_; }
  const std::vector<std::uint64_t>& counts() const { return counts_; }

  /// Returns the i-th sample of the epoch. REQUIRES: i < samples(). Takes O(sources · log sources).
  SourceSample At(std::uint64_t i) const;

 private:
  /// Returns how many samples of the source lie before time a / samples().
  std::uint64_t Before(std::size_t source, std::uint64_t a) const;

  std::vector<std::uint64_t> counts_;
  std::uint64_t samples_ = 0;
};

}  // namespace millrace::data
