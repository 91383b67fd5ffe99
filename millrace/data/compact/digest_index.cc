#include "millrace/data/compact/digest_index.h"

#include "millrace/base/bytes.h"
#include "millrace/base/hash/digest.h"

namespace millrace::data {
namespace {

constexpr std::size_t kFirstDigestSlots = 1024;  // a guess: small, and a power of two

}  // namespace

TextDigest TextDigest::Of(std::string_view text) {
  const Sha256Digest digest = Sha256(AsBytes(text));
  return {LoadLittle<std::uint64_t>(digest.data()), LoadLittle<std::uint64_t>(digest.data() + 8)};
}

std::optional<std::uint64_t> DigestIndex::FindOrAdd(TextDigest digest, std::uint64_t place) {
  if (4 * (used_ + 1) > 3 * slots_.size()) Grow();
  Slot& slot = SlotOf(digest);
  if (slot.place != kNoPlace) return slot.place;
  slot = {digest, place};
  ++used_;
  return std::nullopt;
}

DigestIndex::Slot& DigestIndex::SlotOf(TextDigest digest) {
  std::size_t at = digest.low & (slots_.size() - 1);
  while (slots_[at].place != kNoPlace && slots_[at].digest != digest) at = (at + 1) & (slots_.size() - 1);
  return slots_[at];
}

void DigestIndex::Grow() {
  std::vector<Slot> old(slots_.empty() ? kFirstDigestSlots : 2 * slots_.size());
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.place != kNoPlace) SlotOf(slot.digest) = slot;
  }
}

}  // namespace millrace::data
