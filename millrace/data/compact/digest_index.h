// An index of the documents that were seen, by a digest of their text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace millrace::data {

/// The first 128 bits of a text's SHA-256. Among 2^32 different texts, two have the same digest with a probability of
/// 2^-65.
struct TextDigest {
  std::uint64_t high = 0, low = 0;
  static TextDigest Of(std::string_view text);
  bool operator==(const TextDigest&) const = default;
};

/// Keeps the first place of each digest. Takes 32 to 64 bytes a digest, and while it grows half as much again. One
/// thread.
class DigestIndex {
 public:
  /// Returns the place of the digest if it has one. Else gives it `place`, and returns nothing.
  std::optional<std::uint64_t> FindOrAdd(TextDigest digest, std::uint64_t place);
  /// Changes the place of a digest. REQUIRES: the digest has one.
  void Move(TextDigest digest, std::uint64_t place) { SlotOf(digest).place = place; }
  std::uint64_t bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  struct Slot {
    TextDigest digest;
    std::uint64_t place = kNoPlace;
  };
  static constexpr std::uint64_t kNoPlace = UINT64_MAX;
  Slot& SlotOf(TextDigest digest);
  void Grow();

  std::vector<Slot> slots_;  ///< open addressing; a power of two
  std::size_t used_ = 0;
};

}  // namespace millrace::data
