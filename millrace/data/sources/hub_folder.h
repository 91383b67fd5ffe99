// Folders as Hugging Face's tools lay them out: which objects are which split.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/object/object_info.h"

namespace millrace::data {

/// "s3://bucket/folder/#train" is its split "train" of the folder; without '#', all of it.
struct SplitUrl {
  std::string url, split;
};
SplitUrl ParseSplitUrl(std::string_view text);

/// True of what shows that a folder is a data set of Hugging Face's: what save_to_disk describes it by, or a shard
/// named "train-00000-of-00005.parquet" (or .arrow).
bool IsHubFile(std::string_view key);

/// What a folder shows to be.
enum class FolderKind {
  kPlain,      ///< any data
  kHub,        ///< a data set of Hugging Face's
  kSavedDict,  ///< what DatasetDict.save_to_disk writes: a folder for each split
};

/// A split, and which of the paths belong to it.
struct NamedSplit {
  std::string name;
  std::vector<std::size_t> paths;
};
/// The splits of the objects at `paths`, which are relative to their folder, as `datasets.load_dataset` finds them
/// (data_files.py: get_data_patterns). The first rule that finds any holds for all:
/// - "data/SPLIT-00000-of-00005.parquet" names any split;
/// - folders, else files, named after train (training), validation (valid, val, dev) or test (testing, eval,
///   evaluation), between any of "-._ ", digits, and the ends of a folder's name; upper case counts;
/// - all are "train".
/// Objects that the rule does not name are in no split; some may be in several.
std::vector<NamedSplit> SplitsByNames(const std::vector<std::string_view>& paths);

/// Of what was found in `folder`, the objects that belong to `split`: one that names tell of, else a folder inside of
/// it. With no split asked for, a folder of Hugging Face's must have one only; anything else is taken whole. Caches of
/// computations ("cache-….arrow") of such a folder never count. Fails with kNotFound, or kInvalidArgument where a split
/// must be chosen, naming those that there are.
Result<std::vector<object::ObjectInfo>> ChooseSplit(std::vector<object::ObjectInfo> found, std::string_view folder,
                                                    FolderKind kind, std::string_view split);

}  // namespace millrace::data
