// Opens a folder of torch.distributed.checkpoint (FileSystemWriter) as an ImportSource. A *.distcp file is a sequence
// of torch.save archives. Each archive holds a box of a tensor, or another value. The file .metadata lists them.
#pragma once

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/source/import_source.h"
#include "millrace/object/location.h"

namespace millrace::checkpoint {

/// Opens the folder. Reads .metadata and the headers of all archives, but not the tensors' bytes. Blocks.
/// REQUIRES: the folder's key is empty or ends with a slash.
/// Errors: kNotFound without .metadata; kCorrupt if the files contradict it; kUnsupported if it uses extensions.
Result<ImportSource> OpenDcpFolder(const object::Location& folder, object::Call call);

}  // namespace millrace::checkpoint
