// The elements of frozen weights that the fingerprint of an adapted model has. Needs no libtorch, so that training,
// serving and merging compute one fingerprint.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace millrace::engine {

/// How many elements of each weight the fingerprint has. A model that differs in a hundredth of its elements is
/// recognised from a single weight with a probability of one half, and from ten of them with 0.998.
inline constexpr std::size_t kSampledElements = 64;

/// An element of a weight that the fingerprint has.
struct SampledElement {
  std::uint64_t draw = 0;   ///< the random number that chose it
  std::uint64_t place = 0;  ///< in the whole weight [out, in], in C order

  /// Returns what the element adds to the fingerprint, which is the sum modulo 2^64 over all elements of all frozen
  /// weights. `value`: in the precision of the run. Checkpoints of adapters have the sum, so it never changes.
  std::uint64_t Hash(float value) const;
};

/// Returns the sampled elements of a weight. `name`: of the model's parameter. Some may be the same element.
/// REQUIRES: `elements` of the weight are positive.
std::array<SampledElement, kSampledElements> SampleWeight(std::string_view name, std::uint64_t elements);

}  // namespace millrace::engine
