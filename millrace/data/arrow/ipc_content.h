// Arrow's IPC formats, stream and file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/data/content/content.h"

namespace millrace::data::arrow_format {

/// A frame is consecutive record batches of together half a MiB or more. Its state names the dictionaries in force:
/// u64 offset and u64 length of each one's message.
std::shared_ptr<const Content> MakeIpcContent(DataObject object, std::vector<std::string> fields);

}  // namespace millrace::data::arrow_format
