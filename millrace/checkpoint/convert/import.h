// Imports: turns a checkpoint of another program into a checkpoint of Millrace.
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
  std::string group;                    ///< prefix for every path, such as "model/"; may be empty
  std::uint64_t file_bytes = 4 * kGiB;  ///< the most tensor bytes in one file; a larger tensor has a file of its own
};

/// Commits `source` as the checkpoint of options.step below `url`. Stores the tensors, the plain values and the files
/// beside a model. Tensors keep their bits, types, shapes and boxes. Checks all bytes that have a checksum. Streams the
/// bytes through memory that it reserves in `budget`. A tensor that is not in C order is rearranged in memory and must
/// fit half of the budget. `progress` counts up to source.TensorBytes(). Blocks.
/// Errors: kAlreadyExists if the step is committed; kCorrupt if `source` contradicts itself or a checksum differs;
/// kResourceExhausted if a tensor does not fit; kStale if a file of the source changed.
Result<Manifest> Import(object::Connection& connection, ImportSource source, std::string_view url, MemoryBudget& budget,
                        const ImportOptions& options = {}, object::Call call = {}, const ByteProgress& progress = {});

}  // namespace millrace::checkpoint
