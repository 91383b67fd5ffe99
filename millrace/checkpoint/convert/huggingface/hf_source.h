// A folder of Hugging Face's libraries or of PEFT as an ImportSource: safetensors or pickles, in one file or many, and
// the files beside them.
#pragma once

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/source/foreign_format.h"
#include "millrace/checkpoint/convert/source/import_source.h"
#include "millrace/object/location.h"

namespace millrace::checkpoint {

/// Opens a model's folder (kHuggingFace) or an adapter's (kPeft). The folder's key is empty or ends with a slash; the
/// key of one *.safetensors file stands for a folder that has nothing else. Blocks.
Result<ImportSource> OpenHuggingFaceFolder(const object::Location& folder, ForeignFormat format, object::Call call);

}  // namespace millrace::checkpoint
