// A folder of torch.distributed.checkpoint (FileSystemWriter) as an ImportSource. Its .metadata says which bytes of
// which
// *.distcp file are an archive of torch.save with a box of a tensor, or with another value.
#pragma once

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/source/import_source.h"
#include "millrace/object/location.h"

namespace millrace::checkpoint {

/// The folder's key is empty or ends with a slash. Blocks.
Result<ImportSource> OpenDcpFolder(const object::Location& folder, object::Call call);

}  // namespace millrace::checkpoint
