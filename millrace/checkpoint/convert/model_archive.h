// A model in a compressed archive: SageMaker's model.tar.gz.
#pragma once

#include <cstdint>
#include <string_view>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/object/connection.h"

namespace millrace::checkpoint {

/// Returns whether the URL ends as an archive's does: .tar.gz or .tgz.
bool IsModelArchive(std::string_view url);

/// Reads the archive from its first byte to its last, and keeps the model's files in memory. Nothing is written to a
/// disk, and no code of the archive is run. The model may be in a folder of the archive. Weights are safetensors or
/// pickles of tensors; of pickles, the tensors are in memory twice for a moment. Blocks.
/// Errors: kNotFound if there is no archive, or no model in it; kResourceExhausted if the files have more than
/// `most_bytes`; kUnsupported for links, and with the name of a pickled object that is no tensor; kCorrupt if the
/// archive is damaged, or has a name that leaves it; kStale if the object changes meanwhile.
Result<ModelSource> OpenModelArchive(object::Connection& connection, std::string_view url, std::uint64_t most_bytes,
                                     const Logger& log, object::Call call = {});

}  // namespace millrace::checkpoint
