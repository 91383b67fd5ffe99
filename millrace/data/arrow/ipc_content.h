// Arrow's IPC formats: the stream and the file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/data/records/content.h"

namespace millrace::data::arrow_format {

/// Returns the content of an object in one of the IPC formats. A frame is consecutive record batches of at least
/// 512 KiB together, or some rows of a large batch. README.md defines the state of a frame.
std::shared_ptr<const Content> MakeIpcContent(DataObject object, std::vector<std::string> fields);

}  // namespace millrace::data::arrow_format
