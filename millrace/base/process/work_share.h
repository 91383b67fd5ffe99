// Work that several processes divide among them without speaking to each other.
#pragma once

#include <cstdint>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/mix.h"
#include "millrace/base/result.h"

namespace millrace {

/// The share of one process: number `index` of `count`. Every item belongs to exactly one share. Plain data.
struct WorkShare {
  std::uint32_t index = 0, count = 1;

  bool is_all() const { return count == 1; }
  /// Items that are counted.
  bool Has(std::uint64_t item) const { return item % count == index; }
  /// Items that have names. Which share a name belongs to depends on the name and `count` alone.
  bool HasName(std::string_view name) const { return Has(MixBits(Crc32c(AsBytes(name)))); }

  /// Reads "I/N": share I of N, where I is from 0 to N-1. Errors: kInvalidArgument.
  static Result<WorkShare> Parse(std::string_view text);
  bool operator==(const WorkShare&) const = default;
};

}  // namespace millrace
