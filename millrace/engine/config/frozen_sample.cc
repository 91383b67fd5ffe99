#include "millrace/engine/config/frozen_sample.h"

#include <bit>

#include "millrace/base/hash/name_hash.h"
#include "millrace/base/hash/random.h"

namespace millrace::engine {

std::uint64_t SampledElement::Hash(float value) const { return Mix64(draw ^ std::bit_cast<std::uint32_t>(value)); }

std::array<SampledElement, kSampledElements> SampleWeight(std::string_view name, std::uint64_t elements) {
  std::array<SampledElement, kSampledElements> sample;
  const std::uint64_t key = HashName(0, name);
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const std::uint64_t draw = Mix64(key + i);
    sample[i] = {draw, draw % elements};
  }
  return sample;
}

}  // namespace millrace::engine
