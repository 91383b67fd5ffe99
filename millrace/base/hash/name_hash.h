// Hashes names to the keys of random numbers.
#pragma once

#include <cstdint>
#include <string_view>

#include "millrace/base/hash/random.h"

namespace millrace {

/// Returns a hash of the name that differs between seeds. Runs depend on it: a change changes initial weights and
/// choices of dropout.
inline std::uint64_t HashName(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = Mix64(seed);
  for (const char c : name) hash = Mix64(hash ^ static_cast<unsigned char>(c));
  return hash;
}

}  // namespace millrace
