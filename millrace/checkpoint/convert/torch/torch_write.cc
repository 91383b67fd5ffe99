// The writing half of torch_state.h, and paths.
#include <algorithm>
#include <charconv>
#include <limits>

#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"
#include "millrace/checkpoint/convert/torch/torch_dtypes.h"
#include "millrace/checkpoint/convert/torch/torch_state.h"
#include "millrace/checkpoint/format/dtype.h"
#include "millrace/checkpoint/format/tensor_meta.h"

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

/// Returns the text of a JSON string; nothing for other JSON.
std::optional<std::string_view> Text(const Json& inner) {
  if (!inner.is_string()) return std::nullopt;
  return inner.get_ref<const std::string&>();
}

/// Writes the numpy.dtype of a type string such as "<f4". For text types the state also has the size of an element.
Status WriteNumpyType(PickleWriter& out, std::string_view type) {
  const auto number = type.size() >= 3 ? Integer(type.substr(2)) : std::nullopt;
  if (!number || *number < 0 || *number > INT32_MAX / 4 || !std::string_view("<>|").contains(type[0]) ||
      !std::string_view("biufcSU").contains(type[1])) {
    return Fail(Code::kUnsupported, "numpy values of the type \"{}\" are not supported", type);
  }
  out.Global("numpy", "dtype");
  out.OpenMark();
  out.Text(type.substr(1));
  out.Bool(false);
  out.Bool(true);
  out.Tuple();
  out.Reduce();
  out.OpenMark();
  out.Int(3);
  out.Text(type.substr(0, 1));
  for (int i = 0; i < 3; ++i) out.None();
  const bool text = type[1] == 'U', bytes = type[1] == 'S';
  out.Int(text ? 4 * *number : bytes ? *number : -1);
  out.Int(text ? 4 : bytes ? 1 : -1);
  out.Int(text ? 8 : 0);
  out.Tuple();
  out.Build();
  return {};
}

/// Writes {"numpy": [type, content]}.
Status WriteScalar(PickleWriter& out, const Json& inner) {
  if (!inner.is_array() || inner.size() != 2 || !inner[0].is_string() || !inner[1].is_string())
    return Fail(Code::kCorrupt, "a numpy scalar is not [type, content]");
  out.Global("numpy._core.multiarray", "scalar");
  out.OpenMark();
  MR_TRY(WriteNumpyType(out, *Text(inner[0])));
  const auto content = MR_TRY(Base64Decode(*Text(inner[1])));
  out.Bytes(AsText(content));
  out.Tuple();
  out.Reduce();
  return {};
}

/// Writes {"ndarray": [type, shape, content]}.
Status WriteArray(PickleWriter& out, const Json& inner) {
  if (!inner.is_array() || inner.size() != 3 || !inner[0].is_string() || !inner[1].is_array() || !inner[2].is_string())
    return Fail(Code::kCorrupt, "a numpy array is not [type, shape, content]");
  std::vector<std::int64_t> shape;
  for (const Json& size : inner[1]) {
    if (!size.is_number_integer()) return Fail(Code::kCorrupt, "a numpy array's shape is not a list of ints");
    shape.push_back(size.get<std::int64_t>());
  }
  out.Global("numpy._core.multiarray", "_reconstruct");
  out.OpenMark();
  out.Global("numpy", "ndarray");
  out.IntTuple(std::vector<int>{0});
  out.Bytes("b");
  out.Tuple();
  out.Reduce();
  out.OpenMark();
  out.Int(1);
  out.IntTuple(shape);
  MR_TRY(WriteNumpyType(out, *Text(inner[0])));
  out.Bool(false);
  const auto content = MR_TRY(Base64Decode(*Text(inner[2])));
  out.Bytes(AsText(content));
  out.Tuple();
  out.Build();
  return {};
}

Status WriteTagged(PickleWriter& out, const std::string& tag, const Json& inner) {
  if (tag == "numpy") return WriteScalar(out, inner);
  if (tag == "ndarray") return WriteArray(out, inner);
  const auto text = Text(inner);
  if (!text) return Fail(Code::kUnsupported, "values of the kind \"{}\" are not supported", tag);
  if (tag == "bytes") {
    const auto bytes = MR_TRY(Base64Decode(*text));
    out.Bytes(AsText(bytes));
    return {};
  }
  if (tag == "float" && (text == "nan" || text == "inf" || text == "-inf")) {
    const double infinite = std::numeric_limits<double>::infinity();
    out.Float(text == "nan" ? std::numeric_limits<double>::quiet_NaN() : text == "inf" ? infinite : -infinite);
    return {};
  }
  if (tag == "dtype") {
    if (const TorchDType* dtype = FindTorchDType(fmt::format("torch.{}", *text))) {
      WriteDType(out, dtype->dtype);
      return {};
    }
  }
  if (tag == "int" && IsBigInt(*text)) {
    out.BigInt(*text);
    return {};
  }
  return Fail(Code::kUnsupported, "values of the kind \"{}\" are not supported", tag);
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
      if (!number) return Fail(Code::kCorrupt, "\"{}\" is not a valid part of a path", part);
      key.kind = part[0] == '#'   ? PathKey::KeyKind::kIntKey
                 : part[0] == '@' ? PathKey::KeyKind::kListIndex
                                  : PathKey::KeyKind::kTupleIndex;
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
  out.OpenMark();
  out.OpenMark();
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

Status WriteValue(PickleWriter& out, const Json& value) {
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
      if (value.size() == 1) return WriteTagged(out, value.begin().key(), value.begin().value());
      [[fallthrough]];
    default:
      return Fail(Code::kUnsupported, "this version does not know the kind of a value");
  }
}

}  // namespace millrace::checkpoint
