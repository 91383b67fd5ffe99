// A Python state as a tree of dicts, lists, tensors and values. The exports to torch's formats build it from the paths
// of a checkpoint and write it as a pickle. Only for the sources of this module.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/checkpoint/convert/torch/torch_state.h"
#include "millrace/checkpoint/format/tensor_meta.h"

namespace millrace::checkpoint {

/// A node of the tree: a tensor, a plain value or a container.
struct StateNode {
  enum class NodeKind { kTensor, kValue, kList, kTuple, kSize, kDict };
  struct Item {
    Json key = nullptr;           ///< in a kDict: a text, an int, or another plain value
    std::string part;             ///< the path component of the key or index; empty if the key has none
    std::vector<StateNode> node;  ///< exactly one: a vector, as StateNode is not complete here
    const StateNode& operator*() const { return node.front(); }
  };
  NodeKind kind = NodeKind::kValue;
  std::string path;                    ///< in the state; empty for the root. A tensor's path is its name
  const TensorMeta* tensor = nullptr;  ///< of a kTensor
  Json value = nullptr;                ///< of a kValue: not a container
  std::vector<Item> items;             ///< of containers
  bool ordered = false;                ///< whether a kDict is an OrderedDict

  bool HoldsTensors() const;
};

/// Builds the tree from tensors and values by path. `dicts` is kMetaDicts for these paths: the key order of the dicts.
/// The tree borrows the tensors.
/// Errors: kInvalidArgument if a path is both a value and a container; kResourceExhausted if the tree is too deep.
Result<StateNode> BuildState(const std::map<std::string, TensorMeta>& tensors, const Json& values, const Json& dicts);

/// Writes the node as a pickle. `storages` maps each tensor's path to the key of its storage in the archive.
/// Errors: kUnsupported if a value has no form in a pickle here.
Status WriteState(PickleWriter& out, const StateNode& node, const std::map<std::string, std::string>& storages);

/// Returns kMetaDicts for the dicts of the state.
Json DescribeDicts(const StateNode& state);

}  // namespace millrace::checkpoint
