// The content of one group of a checkpoint, such as "model/". Pure functions.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/checkpoint/format/manifest.h"

namespace millrace::checkpoint {

/// Returns the tensors of a group by their names without the group's prefix. An empty group is the whole checkpoint.
std::map<std::string, TensorMeta> TensorsBelow(const Manifest& manifest, std::string_view group);
/// Returns the plain values of a group by path. For an empty group, kMetaEntry holds the rest of the checkpoint's meta.
Json ValuesBelow(const Manifest& manifest, std::string_view group);
/// Returns the part of kMetaDicts that describes the group's dicts, by path.
Json DictsBelow(const Manifest& manifest, std::string_view group);

}  // namespace millrace::checkpoint
