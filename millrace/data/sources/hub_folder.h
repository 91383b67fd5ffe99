// Folders as Hugging Face's tools write them: which objects belong to which split.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/object/object_info.h"

namespace millrace::data {

/// Parts of a URL: "s3://bucket/folder/#train" is the split "train" of the folder. Without '#' it is all of the folder.
struct SplitUrl {
  std::string url, split;
};
SplitUrl ParseSplitUrl(std::string_view text);

/// Returns true for objects that only a data set of Hugging Face has: the description that save_to_disk writes, or a
/// shard named "train-00000-of-00005.parquet" (or .arrow).
bool IsHubFile(std::string_view key);

/// The kind of a folder, as its objects show it.
enum class FolderKind {
  kPlain,      ///< any data
  kHub,        ///< a data set of Hugging Face's
  kSavedDict,  ///< what DatasetDict.save_to_disk writes: a folder for each split
};

/// A split, with the numbers of the paths that belong to it.
struct NamedSplit {
  std::string name;
  std::vector<std::size_t> paths;
};
/// Returns the splits of the objects at `paths`, which are relative to their folder, as `datasets.load_dataset` finds
/// them (data_files.py: get_data_patterns). The first rule that finds a split holds for all objects:
/// 1. "data/SPLIT-00000-of-00005.parquet" names any split.
/// 2. Folders, or else files, are named after train (training), validation (valid, val, dev) or test (testing, eval,
///    evaluation). The word stands between any of "-._ ", digits, and the ends of a folder's name. Case matters.
/// 3. All objects are "train".
/// Objects that the rule does not name are in no split. Some may be in several.
std::vector<NamedSplit> SplitsByNames(const std::vector<std::string_view>& paths);

/// Returns those objects of `found`, in `folder`, that belong to `split`: a split that names show, or else a folder
/// inside `folder`. Without a split, a folder of Hugging Face must have only one; any other folder is taken whole.
/// Cached computations ("cache-….arrow") of a Hugging Face folder are left out.
/// Errors, naming the splits that exist: kNotFound if there is no such split; kInvalidArgument if one must be chosen.
Result<std::vector<object::ObjectInfo>> ChooseSplit(std::vector<object::ObjectInfo> found, std::string_view folder,
                                                    FolderKind kind, std::string_view split);

}  // namespace millrace::data
