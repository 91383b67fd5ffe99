#include "millrace/data/compact/near_index.h"

namespace millrace::data {
namespace {

constexpr std::size_t kFirstBandSlots = 4096;  // a guess: small, and a power of two
/// Kept texts that share a band. Further ones are not found through this band. Without a limit, texts that share much
/// but not enough (forms, licences) would each be compared with all others. 256 is a guess: about 5 µs of comparisons.
constexpr std::size_t kMaxInBand = 256;

}  // namespace

std::optional<NearMatch> NearIndex::FindOrAdd(const MinHashSignature& signature,
                                              std::span<const std::uint32_t> band_hashes, std::uint64_t place) {
  while (2 * (used_ + band_hashes.size()) > slots_.size()) Grow();
  if (auto match = Find(signature, band_hashes)) return match;
  kept_.push_back({signature, place});
  for (const std::uint32_t hash : band_hashes) Add(hash, static_cast<std::uint32_t>(kept_.size()));
  return std::nullopt;
}

std::optional<NearMatch> NearIndex::Find(const MinHashSignature& signature,
                                         std::span<const std::uint32_t> band_hashes) const {
  const std::size_t mask = slots_.size() - 1;
  for (const std::uint32_t hash : band_hashes) {
    for (std::size_t at = hash & mask; slots_[at].text != 0; at = (at + 1) & mask) {
      if (slots_[at].hash != hash) continue;
      const KeptText& text = kept_[slots_[at].text - 1];
      const double similarity = EstimateSimilarity(signature, text.signature);
      if (similarity >= threshold_) return NearMatch{text.place, similarity};
    }
  }
  return std::nullopt;
}

void NearIndex::Add(std::uint32_t hash, std::uint32_t text) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask, equal = 0;
  for (; slots_[at].text != 0; at = (at + 1) & mask) {
    if (slots_[at].hash == hash && ++equal == kMaxInBand) return;
  }
  slots_[at] = {hash, text};
  ++used_;
}

void NearIndex::Grow() {
  std::vector<Slot> old(slots_.empty() ? kFirstBandSlots : 2 * slots_.size());
  old.swap(slots_);
  const std::size_t mask = slots_.size() - 1;
  // A run of slots may begin at the end of the table. It is copied from its beginning, so that equal hashes keep their
  // order: the first slot of the table that is empty is between two runs.
  std::size_t start = 0;
  while (start < old.size() && old[start].text != 0) ++start;
  for (std::size_t i = 0; i < old.size(); ++i) {
    const Slot& slot = old[(start + i) & (old.size() - 1)];
    if (slot.text == 0) continue;
    std::size_t at = slot.hash & mask;
    while (slots_[at].text != 0) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

std::uint64_t NearIndex::bytes() const { return slots_.capacity() * sizeof(Slot) + kept_.size() * sizeof(KeptText); }

}  // namespace millrace::data
