// Opens a folder of DeepSpeed's engine.save_checkpoint() with ZeRO stage 1, 2 or 3 as an ImportSource: the weights in
// float32 from the optimizers' flat tensors, and the optimizer's moments. A file `latest` names the subfolder of the
// newest save.
#pragma once

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/object/location.h"

namespace millrace::checkpoint {

/// Opens the folder that has `latest`, or one save's subfolder. Reads the pickles of all files, but not the tensors'
/// bytes. Blocks.
/// REQUIRES: the folder's key is empty or ends with a slash.
/// Errors: kNotFound if a file is missing; kCorrupt if the files contradict each other; kUnsupported for models that
/// are divided by tensor, pipeline or expert parallelism.
Result<ImportSource> OpenDeepSpeedFolder(const object::Location& folder, const SourceOptions& options,
                                         object::Call call);

/// Returns whether the folder with these files is such a folder, or one save's subfolder.
bool IsDeepSpeedFolder(const std::map<std::string, object::ObjectInfo>& files);

}  // namespace millrace::checkpoint
