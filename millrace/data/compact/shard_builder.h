// Shards: lines of JSON, compressed so that readers can start in the middle.
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "millrace/base/result.h"
#include "millrace/data/compression/compression.h"

namespace millrace::data {

/// Records of the output, as lines of JSON that each end in a newline.
struct Shard {
  std::uint32_t number = 0;
  std::uint64_t records = 0;
  std::string lines;
};

/// Collects records into shards. One thread.
class ShardBuilder {
 public:
  /// A shard ends before the record that would take it beyond `shard_bytes`. A longer record has a shard of its own.
  explicit ShardBuilder(std::uint64_t shard_bytes) : shard_bytes_(shard_bytes) {}
  /// Adds a record, without a newline. Returns the shard before it if the record begins another one.
  std::optional<Shard> Add(std::string_view record);
  /// Returns the last shard, or nothing if it is empty.
  std::optional<Shard> Finish();

 private:
  Shard Take();
  const std::uint64_t shard_bytes_;
  Shard open_;
};

/// Returns the name of a shard: "shard-00017.jsonl.zst".
std::string ShardName(std::uint32_t number, Compression compression);
/// Returns true for the names that ShardName() returns.
bool IsShardName(std::string_view name);

/// Compresses lines in blocks of about 4 MiB, each a zstd frame or gzip member of its own, on up to `threads` threads.
/// The result depends on the lines alone. Blocks. Errors: kCancelled if `stop` fires.
Result<std::string> CompressLines(std::string_view lines, Compression compression, int threads, std::stop_token stop);

}  // namespace millrace::data
