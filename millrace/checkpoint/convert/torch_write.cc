// The writing half of torch_state.h, and paths.
#include <algorithm>
#include <charconv>
#include <limits>

#include "millrace/base/digest.h"
#include "millrace/base/text.h"
#include "millrace/checkpoint/convert/torch_dtypes.h"
#include "millrace/checkpoint/convert/torch_state.h"

namespace millrace::checkpoint {
namespace {

constexpr std::string_view kMarks = "#@(";

void ReplaceAll(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

std::optional<std::int64_t> Integer(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// What lies at a path: a tensor, a value, or more paths.
struct Node {
  std::map<std::string, Node, std::less<>> parts;
  const StateTensor* tensor = nullptr;
  const Json* value = nullptr;
  bool leaf() const { return tensor != nullptr || value != nullptr; }
};

Result<Node*> NodeAt(Node& top, std::string_view path) {
  Node* node = &top;
  int depth = 0;
  for (std::string_view part : Split(path, '/')) {
    if (node->leaf()) return Fail(Code::kInvalidArgument, "{} lies below what is no dict", path);
    if (++depth > kMaxNesting) return Fail(Code::kResourceExhausted, "{} is too deep", path);
    node = &node->parts[std::string(part)];
  }
  if (node->leaf() || !node->parts.empty()) return Fail(Code::kInvalidArgument, "{} is both a value and a dict", path);
  return node;
}

Status WriteNode(PickleWriter& out, const Node& node);

/// Parts as keys, indices of lists in ascending order.
Status WriteParts(PickleWriter& out, const Node& node) {
  std::vector<std::pair<PathKey, const Node*>> parts;
  bool list = true, tuple = true;
  for (const auto& [part, inner] : node.parts) {
    PathKey key = std::move(MR_TRY(PathOf(part)).front());
    list = list && key.kind == PathKey::Kind::kListIndex;
    tuple = tuple && key.kind == PathKey::Kind::kTupleIndex;
    parts.emplace_back(std::move(key), &inner);
  }
  if (node.parts.empty() || (!list && !tuple)) {
    out.EmptyDict();
    out.Mark();
    for (const auto& [key, inner] : parts) {
      if (key.kind == PathKey::Kind::kKey)
        out.Text(key.text);
      else
        out.Int(key.number);
      MR_TRY(WriteNode(out, *inner));
    }
    out.SetItems();
    return {};
  }
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first.number < b.first.number; });
  if (list) out.EmptyList();
  out.Mark();
  for (const auto& [key, inner] : parts) MR_TRY(WriteNode(out, *inner));
  list ? out.Appends() : out.Tuple();
  return {};
}

Status WriteNode(PickleWriter& out, const Node& node) {
  if (node.value != nullptr) return WriteValue(out, *node.value);
  if (node.tensor == nullptr) return WriteParts(out, node);
  WriteTensor(out, node.tensor->meta, node.tensor->storage);
  return {};
}

Status WriteTagged(PickleWriter& out, const std::string& tag, const Json& inner, int depth);

Status WriteValue(PickleWriter& out, const Json& value, int depth) {
  if (depth > kMaxNesting) return Fail(Code::kResourceExhausted, "a value is nested too deeply");
  switch (value.type()) {
    case Json::value_t::null:
      out.None();
      return {};
    case Json::value_t::boolean:
      out.Bool(value.get<bool>());
      return {};
    case Json::value_t::number_integer:
      out.Int(value.get<std::int64_t>());
      return {};
    case Json::value_t::number_unsigned:
      out.Unsigned(value.get<std::uint64_t>());
      return {};
    case Json::value_t::number_float:
      out.Float(value.get<double>());
      return {};
    case Json::value_t::string:
      out.Text(value.get_ref<const std::string&>());
      return {};
    case Json::value_t::object:
      if (value.size() == 1) return WriteTagged(out, value.begin().key(), value.begin().value(), depth);
      [[fallthrough]];
    default:
      return Fail(Code::kUnsupported, "a value of a kind that this version does not know");
  }
}

Status WriteSequence(PickleWriter& out, bool list, const Json& items, int depth) {
  if (list) out.EmptyList();
  out.Mark();
  for (const Json& item : items) MR_TRY(WriteValue(out, item, depth + 1));
  list ? out.Appends() : out.Tuple();
  return {};
}

Status WriteTagged(PickleWriter& out, const std::string& tag, const Json& inner, int depth) {
  if ((tag == "list" || tag == "tuple") && inner.is_array()) return WriteSequence(out, tag == "list", inner, depth);
  if (tag == "dict" && inner.is_array()) {
    out.EmptyDict();
    out.Mark();
    for (const Json& pair : inner) {
      if (!pair.is_array() || pair.size() != 2) return Fail(Code::kCorrupt, "an item of a dict is no pair");
      MR_TRY(WriteValue(out, pair[0], depth + 1));
      MR_TRY(WriteValue(out, pair[1], depth + 1));
    }
    out.SetItems();
    return {};
  }
  if (!inner.is_string()) return Fail(Code::kUnsupported, "a value of the kind \"{}\" cannot be written", tag);
  const auto& text = inner.get_ref<const std::string&>();
  if (tag == "bytes") {
    const auto bytes = MR_TRY(Base64Decode(text));
    out.Bytes(AsText(bytes));
    return {};
  }
  if (tag == "float" && (text == "nan" || text == "inf" || text == "-inf")) {
    const double infinite = std::numeric_limits<double>::infinity();
    out.Float(text == "nan" ? std::numeric_limits<double>::quiet_NaN() : text == "inf" ? infinite : -infinite);
    return {};
  }
  if (tag == "dtype") {
    if (const TorchDType* dtype = FindTorchDType("torch." + text)) {
      WriteDType(out, dtype->dtype);
      return {};
    }
  }
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (tag == "int" && error == std::errc() && end == text.data() + text.size()) {
    out.Unsigned(number);
    return {};
  }
  return Fail(Code::kUnsupported, "a value of the kind \"{}\" cannot be written here", tag);
}

}  // namespace

std::string PathPart(std::string_view key) {
  std::string part(key);
  ReplaceAll(part, "%", "%25");
  ReplaceAll(part, "/", "%2F");
  if (part.empty()) return "%00";
  if (kMarks.find(part[0]) == kMarks.npos) return part;
  return fmt::format("%{:02X}{}", static_cast<unsigned>(part[0]), std::string_view(part).substr(1));
}

Result<std::vector<PathKey>> PathOf(std::string_view path) {
  std::vector<PathKey> keys;
  for (std::string_view part : Split(path, '/')) {
    PathKey key;
    if (!part.empty() && kMarks.find(part[0]) != kMarks.npos) {
      const auto number = Integer(part.substr(1));
      if (!number) return Fail(Code::kCorrupt, "\"{}\" is no part of a path", part);
      key.kind = part[0] == '#'   ? PathKey::Kind::kIntKey
                 : part[0] == '@' ? PathKey::Kind::kListIndex
                                  : PathKey::Kind::kTupleIndex;
      key.number = *number;
    } else if (part != "%00") {
      key.text = part;
      for (auto [code, mark] : {std::pair("%2F", "/"), {"%23", "#"}, {"%40", "@"}, {"%28", "("}, {"%25", "%"}})
        ReplaceAll(key.text, code, mark);
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

void WriteDType(PickleWriter& out, DType dtype) { out.Global("torch", TorchDTypeOf(dtype).name); }

void WriteTensor(PickleWriter& out, const TensorMeta& meta, std::string_view key) {
  const TorchDType& dtype = TorchDTypeOf(meta.dtype);
  const bool typed = !dtype.storage.empty();
  out.Global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  out.Mark();
  out.Mark();
  out.Text("storage");
  typed ? out.Global("torch", dtype.storage) : out.Global("torch.storage", "UntypedStorage");
  out.Text(key);
  out.Text("cpu");
  out.Unsigned(typed ? meta.elements() : meta.bytes());
  out.Tuple();
  out.PersistentId();
  out.Int(0);
  out.IntTuple(meta.shape);
  std::vector<std::int64_t> strides(meta.shape.size(), 1);
  for (std::size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<std::int64_t>(meta.shape[d], 1);
  out.IntTuple(strides);
  out.Bool(false);
  out.Global("collections", "OrderedDict");
  out.EmptyTuple();
  out.Reduce();
  if (!typed) WriteDType(out, meta.dtype);
  out.Tuple();
  out.Reduce();
}

Status WriteValue(PickleWriter& out, const Json& value) { return WriteValue(out, value, 0); }

Status WriteState(PickleWriter& out, const std::map<std::string, StateTensor>& tensors, const Json& values) {
  Node top;
  for (const auto& [path, tensor] : tensors) MR_TRY(NodeAt(top, path))->tensor = &tensor;
  for (const auto& [path, value] : values.items()) MR_TRY(NodeAt(top, path))->value = &value;
  return WriteParts(out, top);
}

}  // namespace millrace::checkpoint
