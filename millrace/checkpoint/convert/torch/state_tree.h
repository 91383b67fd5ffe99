// A state as Python has it, put together again from paths and values: what the exports to torch's formats write. Only
// for the sources of this module.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/checkpoint/convert/torch/torch_state.h"
#include "millrace/checkpoint/format/manifest.h"

namespace millrace::checkpoint {

struct StateNode {
  enum class NodeKind { kTensor, kValue, kList, kTuple, kSize, kDict };
  struct Item {
    Json key = nullptr;           ///< of a kDict: a text, an int, or another plain value
    std::string part;             ///< the key's part of a path; empty where a path cannot have it
    std::vector<StateNode> node;  ///< one
    const StateNode& operator*() const { return node.front(); }
  };
  NodeKind kind = NodeKind::kValue;
  std::string path;                    ///< in the state; of a tensor its name. Empty for the state as a whole
  const TensorMeta* tensor = nullptr;  ///< of a kTensor
  Json value = nullptr;                ///< of a kValue: it holds no other values
  std::vector<Item> items;             ///< of containers
  bool ordered = false;                ///< of a kDict: an OrderedDict

  bool HoldsTensors() const;
};

/// The state of tensors and values by path, with the dicts' order as `dicts` says (kMetaDicts of a checkpoint's meta,
/// of this state's paths). Borrows the tensors. kInvalidArgument where paths contradict each other.
Result<StateNode> BuildState(const std::map<std::string, TensorMeta>& tensors, const Json& values, const Json& dicts);

/// `storages`: which storage of the archive each tensor is, by its path.
Status WriteState(PickleWriter& out, const StateNode& node, const std::map<std::string, std::string>& storages);

/// kMetaDicts of a state's dicts.
Json DescribeDicts(const StateNode& state);

}  // namespace millrace::checkpoint
