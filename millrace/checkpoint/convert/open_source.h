// Opens checkpoints of other programs for an import.
#pragma once

#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/tensors/foreign_format.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/object/connection.h"

namespace millrace::checkpoint {

/// Returns the format of the folder or file at `url`, by the names of its files. Blocks.
/// Errors: kNotFound if no format matches.
Result<ForeignFormat> DetectForeignFormat(object::Connection& connection, std::string_view url, object::Call call = {});

/// Opens the folder or file at `url`. Reads headers, indexes and small entries, but no bytes of tensors. Runs nothing
/// of a pickle. kHuggingFace and kPeft do not use `options`. A model's tensors get names in kModelGroup and an
/// adapter's in kAdapterGroup. All other tensors are named by their paths in the state: those of kTorch and kDcp
/// without a configuration. Blocks. Errors: kNotFound if the files of `format` are missing; kCorrupt if they are
/// damaged; kUnsupported if they hold something that checkpoints cannot store; those of TakeModel().
Result<ImportSource> OpenSource(object::Connection& connection, std::string_view url, ForeignFormat format,
                                object::Call call = {}, const SourceOptions& options = {});

/// Reads the config.json at `url` for SourceOptions. Blocks.
/// Errors: kNotFound if there is none; kInvalidArgument if it is not JSON.
Result<Json> ReadModelConfig(object::Connection& connection, std::string_view url, object::Call call = {});

}  // namespace millrace::checkpoint
