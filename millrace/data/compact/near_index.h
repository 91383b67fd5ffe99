// Finds texts that resemble an earlier one, by their MinHash signatures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "millrace/data/compact/min_hash.h"

namespace millrace::data {

/// An earlier text that resembles another one.
struct NearMatch {
  std::uint64_t place = 0;
  double similarity = 0;  ///< as the signatures estimate it
};

/// Keeps the signatures of texts that resemble no earlier one. A text is a duplicate if it agrees with a kept text in a
/// whole band, and their signatures estimate at least the threshold. The texts themselves are not compared. Takes 264
/// bytes a kept text and 16 to 32 bytes for each band of it: at a threshold of 0.8 up to 840 bytes a text. One thread.
class NearIndex {
 public:
  NearIndex(Banding banding, double threshold) : banding_(banding), threshold_(threshold) {}

  /// Returns a kept text that resembles this one. If there is none, keeps this one at `place`, and returns nothing.
  /// The result depends on the order of the calls alone. `band_hashes` are those of AppendBandHashes().
  std::optional<NearMatch> FindOrAdd(const MinHashSignature& signature, std::span<const std::uint32_t> band_hashes,
                                     std::uint64_t place);
  std::uint64_t bytes() const;

 private:
  /// A text in one band. `text` counts from 1; 0: the slot is empty.
  struct Slot {
    std::uint32_t hash = 0, text = 0;
  };
  struct KeptText {
    MinHashSignature signature{};
    std::uint64_t place = 0;
  };
  std::optional<NearMatch> Find(const MinHashSignature& signature, std::span<const std::uint32_t> band_hashes) const;
  void Add(std::uint32_t hash, std::uint32_t text);
  void Grow();

  const Banding banding_;
  const double threshold_;
  std::deque<KeptText> kept_;
  std::vector<Slot> slots_;  ///< open addressing; a power of two. Equal hashes stand behind one another.
  std::size_t used_ = 0;
};

}  // namespace millrace::data
