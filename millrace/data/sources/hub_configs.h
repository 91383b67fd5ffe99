// The configurations that the README of a data set declares: which objects belong to which split.
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
  bool is_default = false;  ///< the README marks it as the default
  /// The format that its options for load_dataset ask for, for FormatOf (format.h); empty: that of the names.
  std::string format;
  std::string unsupported;  ///< why its objects cannot be read as load_dataset reads them; empty: they can
  /// The splits in their order, each with its patterns. Empty: the names of the folder's objects give the splits.
  std::vector<std::pair<std::string, std::vector<std::string>>> splits;
};

/// Returns the configurations that the YAML between the first two lines "---" declares, or none. `what` names the
/// README in errors. Of the options for load_dataset it reads sep and delimiter (CSV), field (JSON) and sample_by
/// (text). Errors: kInvalidArgument, naming the line, if the YAML declares configurations and does not parse, or
/// declares something that Hugging Face's tools do not read.
Result<std::vector<HubConfig>> ParseHubConfigs(std::string_view readme, const std::string& what);

struct ChosenSplit {
  std::vector<object::ObjectInfo> objects;
  const HubConfig* config = nullptr;  ///< one of those that were given
};

/// Returns the objects of the data set in `folder` that `wanted` chooses: "split", "config" or "config:split". Without
/// a configuration it takes the only one, the one marked as default, or "default". Without a split it takes "train", or
/// the only one. `listed` are the folder's objects, in order. Wildcards do not match objects that hold no records
/// (MayHoldRecords).
/// Errors: kNotFound, naming those that exist, if there is no such configuration or split, or a pattern without
/// wildcards names no object; kInvalidArgument if one must be chosen; kUnsupported, naming it, if the configuration has
/// an option that would change the records in another way.
Result<ChosenSplit> ChooseByConfig(const std::vector<HubConfig>& configs, const std::vector<object::ObjectInfo>& listed,
                                   std::string_view folder, std::string_view wanted);

/// Matches as the globs of fsspec: '*' and '?' do not match '/', "**" matches anything, "[a-c]" and "[!a-c]" match one
/// character.
bool HubPatternMatches(std::string_view pattern, std::string_view path);

}  // namespace millrace::data
