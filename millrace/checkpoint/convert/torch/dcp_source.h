// Opens a folder of torch.distributed.checkpoint (FileSystemWriter) as an ImportSource. A *.distcp file is a sequence
// of torch.save archives. Each archive holds a box of a tensor, or another value. The file .metadata lists them.
#pragma once

#include <functional>
#include <string>

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/checkpoint/convert/torch/pickle.h"
#include "millrace/checkpoint/convert/torch/random_bytes.h"
#include "millrace/object/location.h"

namespace millrace::checkpoint {

/// Callbacks of a format that stores its checkpoints as such a folder, with objects of its own beside the tensors.
struct DcpVisitor {
  /// Gets .metadata, whose pickle may then name any class, and whose root may be of another class than torch's.
  std::function<Status(const Pickle& metadata)> on_metadata;
  /// Gets the archive of an entry that is not a tensor. The source does not have it. Reading from `archive` blocks.
  std::function<Status(const std::string& name, RandomBytes& archive)> on_value;
};

/// Opens the folder. Reads .metadata and the headers of all archives, but not the tensors' bytes. Blocks. A visitor
/// needs both callbacks.
/// REQUIRES: the folder's key is empty or ends with a slash.
/// Errors: kNotFound without .metadata; kCorrupt if the files contradict it; kUnsupported if it uses extensions; those
/// of the visitor.
Result<ImportSource> OpenDcpFolder(const object::Location& folder, object::Call call,
                                   const DcpVisitor* visitor = nullptr);

}  // namespace millrace::checkpoint
