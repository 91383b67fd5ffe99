// From the formats of others to a checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/threads/memory_budget.h"
#include "millrace/checkpoint/convert/source/import_source.h"
#include "millrace/checkpoint/read/reader.h"

namespace millrace::checkpoint {

struct ImportOptions {
  std::uint64_t step = 0;
  std::string group;                    ///< not empty: in front of every path, as "model/"
  std::uint64_t file_bytes = 4 * kGiB;  ///< of the files that are written, but for tensors that are larger
};

/// Commits all of `source` as the checkpoint of a step below `url`: tensors bit by bit in their types and shapes, cut
/// as they are cut there, plain values, and the files beside a model. Bytes with a checksum are compared with it.
/// Streams: memory in flight is reserved in `budget`; only a tensor that is not stored in C order is put together in
/// memory, and must fit half of it. kAlreadyExists when the step is committed. Blocks. `progress` counts the source's
/// TensorBytes.
Result<Manifest> Import(object::Connection& connection, ImportSource source, std::string_view url, MemoryBudget& budget,
                        const ImportOptions& options = {}, object::Call call = {}, const ByteProgress& progress = {});

}  // namespace millrace::checkpoint
