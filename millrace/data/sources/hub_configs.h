// What the README of a data set says by `configs`: which objects are which split of which configuration.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/object/object_info.h"

namespace millrace::data {

struct HubConfig {
  std::string name;
  std::string folder;       ///< its data_dir, ending in '/'; empty: the data set's own
  bool is_default = false;  ///< marked so
  /// Splits with their patterns, in their order. Empty: the names of the folder's objects tell.
  std::vector<std::pair<std::string, std::vector<std::string>>> splits;
};

/// The configurations that the YAML between the first two lines "---" declares; none without. Fails with
/// kInvalidArgument, naming the line, on YAML that declares some and is none, or something else than Hugging Face's
/// tools read. `what` names the README.
Result<std::vector<HubConfig>> ParseHubConfigs(std::string_view readme, const std::string& what);

/// The objects of the data set in `folder` that `wanted` chooses: "split", "config" or "config:split". Without a
/// configuration it is the only one, the one marked as default, or "default"; without a split "train", or the only one.
/// `listed` are the folder's objects, in order; wildcards pass over those that hold no records (MayHoldRecords). Fails
/// with kNotFound, naming those that there are, on a configuration or split that is not, and where a pattern without
/// wildcards names no object; with kInvalidArgument where one must be chosen.
Result<std::vector<object::ObjectInfo>> ChooseByConfig(const std::vector<HubConfig>& configs,
                                                       const std::vector<object::ObjectInfo>& listed,
                                                       std::string_view folder, std::string_view wanted);

/// As fsspec's globs do: '*' and '?' stand for what is not '/', "**" for any, "[a-c]" and "[!a-c]" for one of such.
bool HubPatternMatches(std::string_view pattern, std::string_view path);

}  // namespace millrace::data
