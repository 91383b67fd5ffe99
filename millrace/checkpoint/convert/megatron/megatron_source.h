// Opens a checkpoint of Megatron-Core's dist_checkpointing, format torch_dist, as an ImportSource. It is a folder of
// torch.distributed.checkpoint with Megatron's names, and with the run's arguments in common.pt or in an entry of its
// own. The source has the model under Hugging Face's names.
#pragma once

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/object/location.h"

namespace millrace::checkpoint {

/// Opens the folder of one save, or the folder whose latest_checkpointed_iteration.txt names one. Blocks.
/// REQUIRES: the folder's key is empty or ends with a slash.
/// Errors: kNotFound if a file is missing; kCorrupt if the files contradict each other; kUnsupported if no imported
/// family has such a model, or if the folder has another of Megatron's formats.
Result<ImportSource> OpenMegatronFolder(const object::Location& folder, const SourceOptions& options,
                                        object::Call call);

/// Returns whether a folder with these files is such a folder, or that of one save.
bool IsMegatronFolder(const std::map<std::string, object::ObjectInfo>& files);

}  // namespace millrace::checkpoint
