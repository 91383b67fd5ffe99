// What of a checkpoint lies in a group: below a path such as "model/". Pure functions.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/checkpoint/format/manifest.h"

namespace millrace::checkpoint {

/// The tensors of a group, by their names without the group's; all of them for an empty group.
std::map<std::string, TensorMeta> TensorsBelow(const Manifest& manifest, std::string_view group);
/// The plain values below a group, by path; with all of a checkpoint also what its meta has besides, as kMetaEntry.
Json ValuesBelow(const Manifest& manifest, std::string_view group);
/// kMetaDicts of what lies below a group.
Json DictsBelow(const Manifest& manifest, std::string_view group);

}  // namespace millrace::checkpoint
