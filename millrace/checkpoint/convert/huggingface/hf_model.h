// A model of Hugging Face's libraries within a source: names of its tensors, and the small files beside its weights.
// Sources of other formats use it too if they hold such a model.
#pragma once

#include <map>
#include <string>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/object/store.h"

namespace millrace::checkpoint {

/// Gives the tensors of kModelGroup, and their states in kOptimizerGroup, the names of ModelNames. Leaves out computed
/// tensors and the second names of tied ones, and counts the former and the latter in source.left_out. Notes members of
/// the configuration that are not known. Does nothing without a model's configuration in source.meta.
void NormalizeModel(ImportSource& source);

/// Returns the files in a model's folder and the chat templates in its subfolder, by name below the folder. Blocks.
/// Errors: those of FilesOf().
Result<std::map<std::string, object::ObjectInfo>> FilesOfModel(const object::Location& folder,
                                                               const object::Call& call);

/// Adds the file source.files[`file`] as the tensor kFilesGroup + `name`, if an import keeps files of that name and
/// size.
void AddModelFile(ImportSource& source, const std::string& file, const std::string& name);

/// Reads a config.json. Blocks.
/// Errors: kInvalidArgument if it is not JSON; kStale if the file is gone.
Result<Json> ReadConfigFile(object::ReadStore& store, const object::ObjectInfo& file, const object::Call& call);

}  // namespace millrace::checkpoint
