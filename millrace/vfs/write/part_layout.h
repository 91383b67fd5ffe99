// The division of a file into the parts of its upload.
#pragma once

#include <algorithm>
#include <cstdint>

#include "millrace/vfs/staging/interval_set.h"

namespace millrace::vfs {

/// A fixed division of every file into numbered parts. The same bytes are always in the same part, so a part can be
/// sent again after it changed. The part size doubles after each tenth of the parts that a store allows, up to `most`.
/// If parts begin with 8 MiB and memory does not limit them, a file can be larger than S3 allows. Immutable.
class PartLayout {
 public:
  PartLayout(std::uint64_t first, std::uint64_t most, int max_parts)
      : first_(first), most_(std::max(first, most)), step_(std::max(1, max_parts / 10)), max_parts_(max_parts) {}

  /// Returns the bytes of a part. Numbers begin with 1.
  Interval Range(int number) const {
    Tier tier{1, 0, first_};
    while (tier.part_bytes < most_ && number >= tier.first_part + step_) tier = Next(tier);
    const std::uint64_t begin = tier.begin + tier.part_bytes * static_cast<std::uint64_t>(number - tier.first_part);
    return {begin, begin + tier.part_bytes};
  }
  /// Returns the number of the part that holds the byte at `offset`.
  int IndexOf(std::uint64_t offset) const {
    Tier tier{1, 0, first_};
    while (tier.part_bytes < most_ && offset >= Next(tier).begin) tier = Next(tier);
    return tier.first_part + static_cast<int>((offset - tier.begin) / tier.part_bytes);
  }
  std::uint64_t max_size() const { return Range(max_parts_).end; }

 private:
  /// Parts of one size, one after another.
  struct Tier {
    int first_part;
    std::uint64_t begin, part_bytes;
  };
  Tier Next(const Tier& tier) const {
    return {tier.first_part + step_, tier.begin + tier.part_bytes * static_cast<std::uint64_t>(step_),
            std::min(tier.part_bytes * 2, most_)};
  }

  const std::uint64_t first_, most_;
  const int step_, max_parts_;
};

}  // namespace millrace::vfs
