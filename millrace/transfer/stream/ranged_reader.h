// Reads one version of an object, or a range of it, from front to back with many requests in flight and bounded memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/error.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/object/read_store.h"

namespace millrace::transfer {

/// Reads one object. One thread. Fetches parts ahead in order with If-Match, so all bytes are of one version. If the
/// object is replaced or deleted meanwhile, Next() fails with kStale.
class RangedReader {
 public:
  /// The range to read, and the way to read it.
  struct Options {
    std::uint64_t part_bytes = 8 * kMiB;     ///< of one request
    int parallel_parts = 8;                  ///< requests in flight
    std::optional<object::ByteRange> range;  ///< nothing: the whole object
    /// Reads these ranges, one after the other, instead of `range`. No part reaches from one into the next.
    std::vector<object::ByteRange> ranges = {};
    /// If false, Next() returns parts in the order of their arrival; offset() returns their position.
    bool in_order = true;
  };
  /// `info` comes from Head() or a listing.
  /// REQUIRES: `store` and `budget` outlive the reader.
  RangedReader(object::ReadStore& store, MemoryBudget& budget, object::ObjectInfo info, Options options);
  ~RangedReader();

  /// Returns the next part, or an empty span at the end. Valid until the next call. Blocks until a part is there.
  Result<ByteSpan> Next(object::Call call = {});
  /// A part with its memory. It may outlive the reader, but not the budget.
  struct OwnedPart {
    Reservation reservation;   ///< of the buffer
    Buffer buffer;             ///< may be longer than the part
    std::uint64_t offset = 0;  ///< in the object
    std::uint64_t length = 0;  ///< bytes of the object
    /// The bytes of the object.
    ByteSpan bytes() const { return buffer.span().first(length); }
  };
  /// Like Next(), but passes on the part's memory. Returns nothing at the end.
  Result<std::optional<OwnedPart>> NextOwned(object::Call call = {});
  /// Returns the offset in the object of the part that Next() returned last.
  std::uint64_t offset() const;

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

/// Reads into.size() bytes of an object from `offset` on into the caller's memory, with parallel requests.
/// Errors: kInvalidArgument if the range reaches beyond the object; kStale if it is replaced or deleted meanwhile.
Status ReadInto(object::ReadStore& store, const object::ObjectInfo& info, std::uint64_t offset, MutableByteSpan into,
                int parallel_parts = 8, std::uint64_t part_bytes = 8 * kMiB, object::Call call = {});

}  // namespace millrace::transfer
