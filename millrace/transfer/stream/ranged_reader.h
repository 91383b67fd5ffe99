// Reads one object version front to back (or a range of it) with many requests in flight and bounded memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/object/read_store.h"

namespace millrace::transfer {

/// One reader thread. Parts are fetched ahead in order with If-Match, so the bytes are all of one version: a change in
/// between fails with kStale.
class RangedReader {
 public:
  struct Options {
    std::uint64_t part_bytes = 8 * kMiB;
    int parallel_parts = 8;
    std::optional<object::ByteRange> range;
    /// False: pieces come as they arrive, and offset() says where they belong.
    bool in_order = true;
  };
  /// `info` from Head or a listing. Store and budget must outlive the reader.
  RangedReader(object::ReadStore& store, MemoryBudget& budget, object::ObjectInfo info, Options options);
  ~RangedReader();

  /// The next piece, or an empty span at the end. Valid until the next call.
  Result<ByteSpan> Next(object::Call call = {});
  /// Where in the object the piece lies that Next gave last.
  std::uint64_t offset() const;

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

/// The whole object (or a range) into caller's memory with parallel requests; `into` has exactly the size asked for.
Status ReadInto(object::ReadStore& store, const object::ObjectInfo& info, std::uint64_t offset, MutableByteSpan into,
                int parallel_parts = 8, std::uint64_t part_bytes = 8 * kMiB, object::Call call = {});

}  // namespace millrace::transfer
