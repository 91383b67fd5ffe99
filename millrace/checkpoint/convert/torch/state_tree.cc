#include "millrace/checkpoint/convert/torch/state_tree.h"

#include <algorithm>

#include "millrace/base/text.h"

namespace millrace::checkpoint {
namespace {

using NodeKind = StateNode::NodeKind;

/// A node of the path tree: a tensor, a value, or an inner node.
struct PathNode {
  std::map<std::string, PathNode, std::less<>> parts;
  const TensorMeta* tensor = nullptr;
  const Json* value = nullptr;
  bool leaf() const { return tensor != nullptr || value != nullptr; }
};

Result<PathNode*> NodeAt(PathNode& top, std::string_view path) {
  PathNode* node = &top;
  int depth = 0;
  for (std::string_view part : Split(path, '/')) {
    if (node->leaf())
      return Fail(Code::kInvalidArgument, "a parent of {} is not a container; rename one of the two", path);
    if (++depth > kMaxNesting) return Fail(Code::kResourceExhausted, "{} is nested too deeply", path);
    node = &node->parts[std::string(part)];
  }
  if (node->leaf() || !node->parts.empty())
    return Fail(Code::kInvalidArgument, "{} is there twice; rename one of the two", path);
  return node;
}

std::string Below(std::string_view path, std::string_view part) {
  return path.empty() ? std::string(part) : fmt::format("{}/{}", path, part);
}

/// Returns a plain value as a tree: containers in it become nodes.
Result<StateNode> NodeOfValue(const Json& value, const std::string& path, int depth) {
  if (depth > kMaxNesting) return Fail(Code::kResourceExhausted, "{}: a value is nested too deeply", path);
  StateNode node{.path = path};
  const std::string tag = value.is_object() && value.size() == 1 ? value.begin().key() : "";
  const bool sequence = tag == "list" || tag == "tuple" || tag == "size";
  if ((!sequence && tag != "dict" && tag != "odict") || !value.begin().value().is_array()) {
    node.value = value;
    return node;
  }
  node.kind = tag == "list"    ? NodeKind::kList
              : tag == "tuple" ? NodeKind::kTuple
              : tag == "size"  ? NodeKind::kSize
                               : NodeKind::kDict;
  node.ordered = tag == "odict";
  std::size_t index = 0;
  for (const Json& inner : value.begin().value()) {
    StateNode::Item item;
    if (sequence) {
      item.part = fmt::format("{}{}", tag == "list" ? '@' : '(', index++);
      item.node.push_back(MR_TRY(NodeOfValue(inner, Below(path, item.part), depth + 1)));
    } else {
      if (!inner.is_array() || inner.size() != 2)
        return Fail(Code::kCorrupt, "{}: an item of a dict is not a pair", path);
      item.key = inner[0];
      if (item.key.is_string()) item.part = PathPart(item.key.get_ref<const std::string&>());
      if (item.key.is_number_integer()) item.part = fmt::format("#{}", item.key.get<std::int64_t>());
      item.node.push_back(MR_TRY(NodeOfValue(inner[1], Below(path, item.part), depth + 1)));
    }
    node.items.push_back(std::move(item));
  }
  return node;
}

/// Turns the path tree into the tree of Python containers.
class StateTreeBuilder {
 public:
  explicit StateTreeBuilder(const Json& dicts) {
    if (!dicts.is_object()) return;
    for (const auto& [path, described] : dicts.items()) dicts_.emplace(path, &described);
  }

  Result<StateNode> Build(const PathNode& from, const std::string& path) const {
    if (from.value != nullptr) return NodeOfValue(*from.value, path, 0);
    StateNode node{.path = path};
    if (from.tensor != nullptr) {
      node.kind = NodeKind::kTensor;
      node.tensor = from.tensor;
      return node;
    }
    std::vector<std::pair<PathKey, const std::pair<const std::string, PathNode>*>> parts;
    bool list = !from.parts.empty(), tuple = list;
    for (const auto& part : from.parts) {
      PathKey key = std::move(MR_TRY(PathOf(part.first)).front());
      list = list && key.kind == PathKey::KeyKind::kListIndex;
      tuple = tuple && key.kind == PathKey::KeyKind::kTupleIndex;
      parts.emplace_back(std::move(key), &part);
    }
    node.kind = list ? NodeKind::kList : tuple ? NodeKind::kTuple : NodeKind::kDict;
    if (list || tuple) {
      std::ranges::sort(parts, {}, [](const auto& part) { return part.first.number; });
    } else {
      Arrange(path, node, parts);
    }
    for (auto& [key, part] : parts) {
      StateNode::Item item{.part = part->first};
      if (node.kind == NodeKind::kDict)
        item.key = key.kind == PathKey::KeyKind::kKey ? Json(std::move(key.text)) : Json(key.number);
      item.node.push_back(MR_TRY(Build(part->second, Below(path, part->first))));
      node.items.push_back(std::move(item));
    }
    return node;
  }

 private:
  /// Puts the sorted parts of a dict in the order that kMetaDicts has for it. Leaves them sorted if kMetaDicts has
  /// none, or if its order is not a permutation of the parts.
  template <class Parts>
  void Arrange(const std::string& path, StateNode& node, Parts& parts) const {
    const auto described = dicts_.find(path);
    if (described == dicts_.end()) return;
    const Json* type = JsonFind(*described->second, "type");
    node.ordered = type != nullptr && *type == "OrderedDict";
    const Json* order = JsonFind(*described->second, "order");
    if (order == nullptr || !order->is_array() || order->size() != parts.size()) return;
    Parts arranged;
    std::vector<bool> taken(parts.size());
    for (const Json& index : *order) {
      if (!index.is_number_unsigned() || index.get<std::uint64_t>() >= parts.size()) return;
      const auto at = index.get<std::size_t>();
      if (taken[at]) return;
      taken[at] = true;
      arranged.push_back(parts[at]);
    }
    parts = std::move(arranged);
  }

  std::map<std::string_view, const Json*> dicts_;
};

Status WriteDict(PickleWriter& out, const StateNode& node, const std::map<std::string, std::string>& storages) {
  if (node.ordered) {
    out.Global("collections", "OrderedDict");
    out.EmptyTuple();
    out.Reduce();
  } else {
    out.EmptyDict();
  }
  out.OpenMark();
  for (const StateNode::Item& item : node.items) {
    StateNode key = MR_TRY(NodeOfValue(item.key, node.path, 0));
    MR_TRY(WriteState(out, key, storages));
    MR_TRY(WriteState(out, *item, storages));
  }
  out.SetItems();
  return {};
}

void AddDicts(const StateNode& node, std::map<std::string, Json>& dicts) {
  std::vector<std::string> parts;
  bool described = node.kind == NodeKind::kDict && !node.items.empty();
  for (const StateNode::Item& item : node.items) {
    AddDicts(*item, dicts);
    described = described && !item.part.empty();
    parts.push_back(item.part);
  }
  if (!described) return;
  if (auto description = DescribeDict(parts, node.ordered)) dicts.emplace(node.path, *std::move(description));
}

}  // namespace

bool StateNode::HoldsTensors() const {
  return kind == NodeKind::kTensor ||
         std::ranges::any_of(items, [](const Item& item) { return (*item).HoldsTensors(); });
}

Result<StateNode> BuildState(const std::map<std::string, TensorMeta>& tensors, const Json& values, const Json& dicts) {
  PathNode top;
  for (const auto& [path, tensor] : tensors) MR_TRY(NodeAt(top, path))->tensor = &tensor;
  for (const auto& [path, value] : values.items()) MR_TRY(NodeAt(top, path))->value = &value;
  return StateTreeBuilder(dicts).Build(top, "");
}

Status WriteState(PickleWriter& out, const StateNode& node, const std::map<std::string, std::string>& storages) {
  switch (node.kind) {
    case NodeKind::kTensor:
      WriteTensor(out, *node.tensor, storages.at(node.path));
      return {};
    case NodeKind::kValue: {
      Status written = WriteValue(out, node.value);
      return written ? written : Fail(written.error().Context(node.path));
    }
    case NodeKind::kDict:
      return WriteDict(out, node, storages);
    case NodeKind::kList:
      out.EmptyList();
      break;
    case NodeKind::kSize:
      out.Global("torch", "Size");
      out.OpenMark();
      break;
    case NodeKind::kTuple:
      break;
  }
  out.OpenMark();
  for (const StateNode::Item& item : node.items) MR_TRY(WriteState(out, *item, storages));
  if (node.kind == NodeKind::kList) {
    out.Appends();
    return {};
  }
  out.Tuple();
  if (node.kind == NodeKind::kSize) {
    out.Tuple();
    out.Reduce();
  }
  return {};
}

Json DescribeDicts(const StateNode& state) {
  std::map<std::string, Json> dicts;
  AddDicts(state, dicts);
  return Json::object_t(dicts.begin(), dicts.end());
}

}  // namespace millrace::checkpoint
