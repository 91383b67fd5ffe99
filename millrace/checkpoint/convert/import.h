// Imports: turns a checkpoint of another program into a checkpoint of Millrace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/log.h"
#include "millrace/base/process/work_share.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/read/reader.h"

namespace millrace::checkpoint {

struct ImportOptions {
  std::uint64_t step = 0;
  std::string group;                    ///< prefix for every path, such as "model/"; may be empty
  std::uint64_t file_bytes = 4 * kGiB;  ///< the most tensor bytes in one file; a larger tensor has a file of its own
  WorkShare share = {};                 ///< of ImportShare: the files that this process writes
};

/// Commits `source` as the checkpoint of options.step below `url`. Stores the tensors, the plain values and the files
/// beside a model. Tensors keep their bits, types, shapes and boxes. Checks all bytes that have a checksum. Streams the
/// bytes through memory that it reserves in `budget`. A tensor that is not in C order is rearranged in memory and must
/// fit half of the budget. `progress` counts up to source.TensorBytes(). Blocks.
/// Errors: kAlreadyExists if the step is committed; kCorrupt if `source` contradicts itself or a checksum differs;
/// kResourceExhausted if a tensor does not fit; kStale if a file of the source changed.
Result<Manifest> Import(object::Connection& connection, ImportSource source, std::string_view url, MemoryBudget& budget,
                        const ImportOptions& options = {}, object::Call call = {}, const ByteProgress& progress = {});

/// The result of one share of an import.
struct ImportShareResult {
  std::optional<Manifest> manifest;  ///< committed; none: this share is done, and the first one commits
  std::size_t files = 0;             ///< of the checkpoint
  std::size_t own_files = 0;         ///< of this share
  std::size_t resumed = 0;           ///< own files that an earlier run finished
};

/// Writes the files of options.share, as Import() would. The first share then waits until the files of all shares are
/// there, for as long as that takes, and commits. All shares must import the same versions of the same files with the
/// same options. A share that was stopped goes on where it was when it is started again; a failed share leaves its
/// finished files for that. If the shares have committed before, returns their checkpoint. Blocks.
/// Errors: those of Import(); kPreconditionFailed if garbage collection removed the unfinished import.
Result<ImportShareResult> ImportShare(object::Connection& connection, ImportSource source, std::string_view url,
                                      MemoryBudget& budget, const ImportOptions& options, const Logger& log,
                                      object::Call call = {}, const ByteProgress& progress = {});

/// Returns the number up to which the progress of ImportShare counts, about: the first share counts all files.
/// Errors: kCorrupt if `source` contradicts itself.
Result<std::uint64_t> ImportBytes(const ImportSource& source, const ImportOptions& options);

}  // namespace millrace::checkpoint
