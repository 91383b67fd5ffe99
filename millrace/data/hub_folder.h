// Folders as Hugging Face's tools lay them out: which objects are which split.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/object/store.h"

namespace millrace::data {

/// "s3://bucket/folder/#train" is its split "train" of the folder; without '#', all of it.
struct SplitUrl {
  std::string url, split;
};
SplitUrl ParseSplitUrl(std::string_view text);

/// True of what shows that a folder is a data set of Hugging Face's: what save_to_disk describes it by, or a shard
/// named "train-00000-of-00005.parquet" (or .arrow).
bool IsHubFile(std::string_view key);

/// The split that an object's path in its folder names: "train" of "train-00000-of-00005.parquet",
/// "data/train/0.jsonl", "guanaco-train.arrow" and "train/data-00000-of-00001.arrow"; "validation" of "dev.jsonl";
/// "train_sft" of "data/train_sft-00000-of-00002.parquet". Empty: none.
std::string SplitOf(std::string_view path);

/// Of what was found in `folder`, the objects that belong to `split`. With no split asked for, a hub folder must have
/// one only; anything else is taken whole. Caches of computations ("cache-….arrow") of a hub folder never count. Fails
/// with kNotFound, or kInvalidArgument where a split must be chosen, naming those that there are.
Result<std::vector<object::ObjectInfo>> ChooseSplit(std::vector<object::ObjectInfo> found, std::string_view folder,
                                                    bool hub, std::string_view split);

}  // namespace millrace::data
