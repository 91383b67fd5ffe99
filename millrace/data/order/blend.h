// How the samples of several sources are interleaved: by arithmetic, with the shares right at every prefix.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::data {

/// An epoch holds `counts[s]` samples of source s. The j-th of them lies at time (j + 1/2) / counts[s]; the epoch's
/// order is that of the times, of equal ones that of the sources. So, with p = counts[s] / samples() and S sources,
/// among the first n samples are n·p of source s, give or take (1 - p) / 2 + p·(S - 1) / 2: at most one half for two
/// sources. No memory beside the counts; immutable; any thread may call any method. Part of the order of every run:
/// never changes.
class Blend {
 public:
  /// Their sum is at most 2^62.
  explicit Blend(std::vector<std::uint64_t> counts);

  std::uint64_t samples() const { return samples_; }
  const std::vector<std::uint64_t>& counts() const { return counts_; }

  struct Pick {
    std::uint32_t source = 0;
    std::uint64_t number = 0;  ///< among the source's samples of the epoch
    bool operator==(const Pick&) const = default;
  };
  /// The sample at place `i` < samples(). Takes O(sources · log sources).
  Pick At(std::uint64_t i) const;

 private:
  /// Samples of the source that lie before time a / samples().
  std::uint64_t Before(std::size_t source, std::uint64_t a) const;

  std::vector<std::uint64_t> counts_;
  std::uint64_t samples_ = 0;
};

}  // namespace millrace::data
