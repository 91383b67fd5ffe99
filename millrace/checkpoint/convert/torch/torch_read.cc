// The reading half of torch_state.h.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "millrace/base/hash/text_encoding.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/checkpoint/convert/tensors/meta_names.h"
#include "millrace/checkpoint/convert/torch/torch_dtypes.h"
#include "millrace/checkpoint/convert/torch/torch_state.h"
#include "millrace/checkpoint/format/dtype.h"
#include "millrace/checkpoint/format/tensor_meta.h"

namespace millrace::checkpoint {
namespace {

using ValueKind = Pickle::ValueKind;
using Value = Pickle::Value;

/// The most values that one walk visits. A pickle can refer to one value many times, so a short pickle can describe a
/// tree of exponential size. A guess, far above real states.
constexpr std::size_t kMaxSteps = 1'000'000;
/// The most bytes of texts and paths that one walk copies, for the same reason. As many as a pickle may have.
constexpr std::size_t kMaxCopied = 256 * kMiB;
/// The most dimensions of a tensor or an array. 64: the limit of torch's tensor iterators and of numpy 2.
constexpr std::size_t kMaxDimensions = 64;

constexpr std::string_view kGlobals[] = {
    "__builtin__.bytes",
    "_codecs.encode",
    "argparse.Namespace",
    "builtins.bytes",
    "collections.OrderedDict",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy.dtype",
    "numpy.ndarray",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
    "torch.BFloat16Storage",
    "torch.BoolStorage",
    "torch.ByteStorage",
    "torch.CharStorage",
    "torch.ComplexDoubleStorage",
    "torch.ComplexFloatStorage",
    "torch.DoubleStorage",
    "torch.FloatStorage",
    "torch.HalfStorage",
    "torch.IntStorage",
    "torch.LongStorage",
    "torch.ShortStorage",
    "torch.Size",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch.bfloat16",
    "torch.bool",
    "torch.complex128",
    "torch.complex64",
    "torch.device",
    "torch.float16",
    "torch.float32",
    "torch.float64",
    "torch.float8_e4m3fn",
    "torch.float8_e5m2",
    "torch.int16",
    "torch.int32",
    "torch.int64",
    "torch.int8",
    "torch.storage.UntypedStorage",
    "torch.uint16",
    "torch.uint32",
    "torch.uint64",
    "torch.uint8",
    "types.SimpleNamespace",
};

/// Returns the dict of the attributes of a namespace, such as the arguments of a script; else the value itself.
const Value* WithoutNamespace(const Pickle& pickle, const Value* value) {
  static const Value no_attributes{.kind = ValueKind::kDict};
  if (!pickle.IsCall(*value, "argparse.Namespace") && !pickle.IsCall(*value, "types.SimpleNamespace")) return value;
  return value->state == Pickle::kNone ? &no_attributes : &pickle[value->state];
}

Result<std::vector<std::int64_t>> Sizes(const Pickle& pickle, const Value& tuple) {
  if (tuple.kind != ValueKind::kTuple || tuple.items.size() > kMaxDimensions)
    return Fail(Code::kCorrupt, "a tensor's size or stride is not a tuple of ints");
  std::vector<std::int64_t> sizes;
  for (const Pickle::Id item : tuple.items) {
    if (pickle[item].kind != ValueKind::kInt || pickle[item].number < 0)
      return Fail(Code::kCorrupt, "a tensor's size or stride is not a tuple of ints");
    sizes.push_back(pickle[item].number);
  }
  return sizes;
}

/// The storage that a persistent id names: ("storage", type, key, location, elements).
struct Storage {
  std::optional<DType> dtype;  ///< empty for an UntypedStorage: the tensor has the type
  std::string key;
  std::uint64_t bytes = 0;
};
Result<Storage> StorageOf(const Pickle& pickle, const Value& id) {
  if (id.kind != ValueKind::kPersistent || pickle[id.items[0]].kind != ValueKind::kTuple)
    return Fail(Code::kCorrupt, "a tensor has no storage");
  const auto& parts = pickle[id.items[0]].items;
  if (parts.size() < 5 || pickle[parts[0]].text != "storage" || pickle[parts[1]].kind != ValueKind::kGlobal ||
      pickle[parts[2]].kind != ValueKind::kText || pickle[parts[4]].kind != ValueKind::kInt ||
      pickle[parts[4]].number < 0) {
    return Fail(Code::kCorrupt, "a tensor's storage does not have the form that torch writes");
  }
  Storage storage{.key = pickle[parts[2]].text};
  std::uint64_t element = 1;
  if (const std::string& type = pickle[parts[1]].text; type != "torch.storage.UntypedStorage") {
    const TorchDType* found = FindTorchStorage(type);
    if (found == nullptr) return Fail(Code::kUnsupported, "safetensors has no element type for {}", type);
    storage.dtype = found->dtype;
    element = DTypeBytes(found->dtype);
  }
  const auto elements = static_cast<std::uint64_t>(pickle[parts[4]].number);
  if (elements > INT64_MAX / element) return Fail(Code::kCorrupt, "a storage is impossibly large");
  storage.bytes = elements * element;
  return storage;
}

/// Checks that the view lies inside its storage. Clears the strides if the tensor is in C order.
Status SettleView(TorchTensor& tensor, std::int64_t offset) {
  MR_TRY(tensor.meta.Check("of the archive"));
  const auto& shape = tensor.meta.shape;
  if (tensor.strides.size() != shape.size()) return Fail(Code::kCorrupt, "a tensor's size and stride do not match");
  const std::uint64_t element = DTypeBytes(tensor.meta.dtype);
  if (tensor.meta.elements() == 0) {
    tensor.strides.clear();
    return {};
  }
  __int128 last = offset, expected = 1;
  bool plain = true;
  for (std::size_t d = shape.size(); d-- > 0;) {
    last += static_cast<__int128>(shape[d] - 1) * tensor.strides[d];
    if (last > INT64_MAX) return Fail(Code::kCorrupt, "a tensor reaches beyond its storage");
    plain = plain && (shape[d] == 1 || tensor.strides[d] == expected);
    expected *= shape[d];
  }
  if (last >= static_cast<__int128>(tensor.storage_bytes / element))
    return Fail(Code::kCorrupt, "a tensor reaches beyond its storage");
  tensor.offset = static_cast<std::uint64_t>(offset) * element;
  if (plain) tensor.strides.clear();
  return {};
}

/// Counts what a walk through a pickle visits and copies.
class WalkBudget {
 public:
  /// Counts a value `depth` values deep, of which `bytes` are copied. Errors: kResourceExhausted beyond the limits.
  Status Spend(int depth, std::size_t bytes) {
    bytes_ += bytes;
    if (depth <= kMaxNesting && ++steps_ <= kMaxSteps && bytes_ <= kMaxCopied) return {};
    return Fail(Code::kResourceExhausted, "a value is nested too deeply, or too large");
  }

 private:
  std::size_t steps_ = 0, bytes_ = 0;
};

/// Turns plain values into JSON. Bounds depth, number and bytes of the values that it visits.
class ValueReader {
 public:
  explicit ValueReader(const Pickle& pickle) : pickle_(pickle) {}

  Result<Json> Read(const Value& object, int depth = 0) {
    const Value& value = *WithoutNamespace(pickle_, &object);
    MR_TRY(budget_.Spend(depth, value.text.size()));
    switch (value.kind) {
      case ValueKind::kNone:
        return Json(nullptr);
      case ValueKind::kBool:
        return Json(value.number != 0);
      case ValueKind::kInt:
        return Json(value.number);
      case ValueKind::kUnsigned:
        return Json{{"int", fmt::format("{}", static_cast<std::uint64_t>(value.number))}};
      case ValueKind::kBigInt:
        return Json{{"int", value.text}};
      case ValueKind::kFloat:
        if (std::isfinite(value.real)) return Json(value.real);
        return Json{{"float", std::isnan(value.real) ? "nan" : value.real > 0 ? "inf" : "-inf"}};
      case ValueKind::kText:
        return Json(value.text);
      case ValueKind::kBytes:
        return Json{{"bytes", Base64Encode(AsBytes(value.text))}};
      case ValueKind::kList:
        return Items("list", value, depth);
      case ValueKind::kTuple:
        return Items("tuple", value, depth);
      case ValueKind::kDict:
        return Dict("dict", value, 0, depth);
      case ValueKind::kGlobal:
        if (const TorchDType* dtype = FindTorchDType(value.text)) return Json{{"dtype", dtype->name}};
        break;
      case ValueKind::kCall:
        return Call(value, depth);
      case ValueKind::kPersistent:
        break;
    }
    return Fail(Code::kUnsupported, "a value is neither a tensor nor plain");
  }

 private:
  Result<Json> Items(const char* kind, const Value& value, int depth) {
    Json items = Json::array();
    for (const Pickle::Id id : value.items) {
      Json item = MR_TRY(Read(pickle_[id], depth + 1));
      items.push_back(std::move(item));
    }
    return Json{{kind, std::move(items)}};
  }
  Result<Json> Dict(const char* kind, const Value& value, std::size_t first, int depth) {
    Json pairs = Json::array();
    for (std::size_t i = first; i + 1 < value.items.size(); i += 2) {
      Json key = MR_TRY(Read(pickle_[value.items[i]], depth + 1));
      Json inner = MR_TRY(Read(pickle_[value.items[i + 1]], depth + 1));
      pairs.push_back(Json::array({std::move(key), std::move(inner)}));
    }
    return Json{{kind, std::move(pairs)}};
  }
  Result<Json> Call(const Value& value, int depth) {
    const std::string& what = pickle_[value.items[0]].text;
    const auto arguments = pickle_.Arguments(value);
    if (what == "collections.OrderedDict") return Dict("odict", value, 2, depth);
    if (what == "torch.Size" && arguments.size() == 1) return Items("size", pickle_[arguments[0]], depth);
    if (const auto bytes = MR_TRY(BytesOf(value))) return Json{{"bytes", Base64Encode(AsBytes(*bytes))}};
    if (what.ends_with(".multiarray.scalar")) return Scalar(arguments);
    if (what.ends_with(".multiarray._reconstruct")) return Array(value);
    if (what == "torch.device") return Joined(arguments, ":");
    if (what.starts_with("pathlib.")) return Joined(arguments, "/");
    return Fail(Code::kUnsupported, "a value made by {} is neither a tensor nor plain", what);
  }
  /// Returns the text of torch.device("cuda", 1) or PosixPath("/", "data"): plain text when it is exported again.
  Result<Json> Joined(std::span<const Pickle::Id> arguments, std::string_view separator) const {
    std::string text;
    for (const Pickle::Id id : arguments) {
      const Value& part = pickle_[id];
      if (part.kind != ValueKind::kText && part.kind != ValueKind::kInt)
        return Fail(Code::kCorrupt, "a path or a device has a part that is neither a text nor a number");
      if (!text.empty() && !text.ends_with(separator)) text += separator;
      text += part.kind == ValueKind::kText ? part.text : fmt::format("{}", part.number);
    }
    return Json(std::move(text));
  }
  /// Returns the content of a bytes object; nothing if the value is not one.
  Result<std::optional<std::string>> BytesOf(const Value& value) {
    const bool encoded = pickle_.IsCall(value, "_codecs.encode") && pickle_.Arguments(value).size() == 2;
    if (encoded || value.kind == ValueKind::kBytes) {
      const std::string& text = encoded ? pickle_[pickle_.Arguments(value)[0]].text : value.text;
      MR_TRY(budget_.Spend(0, text.size()));
      if (encoded) return MR_TRY(Encoded(text));
      return text;
    }
    const bool empty = pickle_.IsCall(value, "__builtin__.bytes") || pickle_.IsCall(value, "builtins.bytes");
    if (empty && pickle_.Arguments(value).empty()) return std::string();
    return std::optional<std::string>();
  }
  /// Decodes bytes that protocol 2 wrote as text: each byte is a code point below 256.
  static Result<std::string> Encoded(std::string_view text) {
    std::string bytes;
    for (std::size_t i = 0; i < text.size(); ++i) {
      auto code = static_cast<unsigned char>(text[i]);
      if (code >= 0x80) {
        if (code > 0xc3 || i + 1 == text.size()) return Fail(Code::kCorrupt, "bytes are written with a code above 255");
        code = static_cast<unsigned char>((code & 0x03) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3f));
      }
      bytes += static_cast<char>(code);
    }
    return bytes;
  }

  /// Returns the type string, such as "<f4" for numpy.dtype("f4", False, True) with the state (3, "<", None, …).
  Result<std::string> NumpyType(const Value& dtype) const {
    if (pickle_.IsCall(dtype, "numpy.dtype") && !pickle_.Arguments(dtype).empty() && dtype.state != Pickle::kNone) {
      const std::string& code = pickle_[pickle_.Arguments(dtype)[0]].text;
      const auto& state = pickle_[dtype.state].items;
      const std::string order = state.size() >= 2 ? pickle_[state[1]].text : "";
      const bool plain = code.size() >= 2 && code.size() <= 9 && std::string_view("biufcSU").contains(code[0]) &&
                         code.find_first_not_of("0123456789", 1) == code.npos;
      if (plain && (order == "<" || order == ">" || order == "|")) return order + code;
    }
    return Fail(Code::kUnsupported, "the type of a numpy value is neither a number nor text");
  }
  Result<Json> Scalar(std::span<const Pickle::Id> arguments) {
    if (arguments.size() != 2) return Fail(Code::kCorrupt, "a numpy scalar does not have two arguments");
    const auto bytes = MR_TRY(BytesOf(pickle_[arguments[1]]));
    if (!bytes) return Fail(Code::kCorrupt, "a numpy scalar has no bytes");
    const std::string type = MR_TRY(NumpyType(pickle_[arguments[0]]));
    return Json{{"numpy", Json::array({type, Base64Encode(AsBytes(*bytes))})}};
  }
  /// Reads an array with the state (1, shape, dtype, whether it is in Fortran order, bytes).
  Result<Json> Array(const Value& value) {
    if (value.state == Pickle::kNone || pickle_[value.state].items.size() != 5)
      return Fail(Code::kUnsupported, "a numpy array has no content");
    const auto& state = pickle_[value.state].items;
    std::vector<std::int64_t> shape = MR_TRY(Sizes(pickle_, pickle_[state[1]]));
    const auto bytes = MR_TRY(BytesOf(pickle_[state[4]]));
    if (!bytes) return Fail(Code::kUnsupported, "a numpy array holds objects");
    if (pickle_[state[3]].number != 0 && shape.size() > 1)
      return Fail(Code::kUnsupported, "a numpy array is in Fortran order: save numpy.ascontiguousarray() of it");
    const std::string type = MR_TRY(NumpyType(pickle_[state[2]]));
    return Json{{"ndarray", Json::array({type, std::move(shape), Base64Encode(AsBytes(*bytes))})}};
  }

  const Pickle& pickle_;
  WalkBudget budget_;
};

/// Walks a state as leaves_of of python/millrace/_state.py does.
class StateReader {
 public:
  explicit StateReader(const Pickle& pickle) : pickle_(pickle), values_(pickle) {}

  Result<TorchState> Read() {
    if (!IsDict(pickle_.root()))
      return Fail(Code::kUnsupported, "the state is not a dict: save {{\"name\": tensor, …}} or a state_dict()");
    return ReadAt("");
  }
  Result<TorchState> ReadAt(const std::string& path) {
    MR_TRY(Walk(pickle_.root(), path, 0));
    return std::move(state_);
  }

 private:
  bool IsDict(const Value& value) const {
    return value.kind == ValueKind::kDict || pickle_.IsCall(value, "collections.OrderedDict");
  }
  static std::size_t FirstItem(const Value& dict) { return dict.kind == ValueKind::kCall ? 2 : 0; }

  Result<bool> HoldsTensors(const Value& object, int depth) {
    const Value& value = *WithoutNamespace(pickle_, &object);
    MR_TRY(budget_.Spend(depth, 0));
    if (MR_TRY(TensorOf(pickle_, value))) return true;
    if (value.kind != ValueKind::kList && value.kind != ValueKind::kTuple && !IsDict(value)) return false;
    for (std::size_t i = FirstItem(value); i < value.items.size(); ++i)
      if (MR_TRY(HoldsTensors(pickle_[value.items[i]], depth + 1))) return true;
    return false;
  }

  Status Walk(const Value& object, const std::string& path, int depth) {
    const Value& value = *WithoutNamespace(pickle_, &object);
    MR_TRY(budget_.Spend(depth, path.size()));
    if (auto tensor = MR_TRY(TensorOf(pickle_, value))) {
      if (!state_.tensors.emplace(path, *std::move(tensor)).second)
        return Fail(Code::kCorrupt, "the state has {} twice", path);
      return {};
    }
    if (IsDict(value) && (path.empty() || MR_TRY(IsGoneThrough(value, depth)))) return WalkDict(value, path, depth);
    const bool sequence = value.kind == ValueKind::kList || value.kind == ValueKind::kTuple;
    if (sequence && MR_TRY(HoldsTensors(value, depth))) {
      const char mark = value.kind == ValueKind::kList ? '@' : '(';
      for (std::size_t i = 0; i < value.items.size(); ++i)
        MR_TRY(Walk(pickle_[value.items[i]], fmt::format("{}/{}{}", path, mark, i), depth + 1));
      return {};
    }
    auto plain = values_.Read(value);
    if (!plain) return Fail(plain.error().Context(path));
    if (!state_.values.emplace(path, *std::move(plain)).second)
      return Fail(Code::kCorrupt, "the state has {} twice", path);
    return {};
  }

  /// Whether a dict's items get paths of their own. The same rule as _is_gone_through of python/millrace/_state.py.
  Result<bool> IsGoneThrough(const Value& dict, int depth) {
    bool path_keys = dict.items.size() > FirstItem(dict);
    for (std::size_t i = FirstItem(dict); i + 1 < dict.items.size(); i += 2) {
      const ValueKind key = pickle_[dict.items[i]].kind;
      path_keys = path_keys && (key == ValueKind::kText || key == ValueKind::kInt);
    }
    return path_keys || MR_TRY(HoldsTensors(dict, depth));
  }

  Status WalkDict(const Value& dict, const std::string& path, int depth) {
    std::vector<std::string> parts;
    for (std::size_t i = FirstItem(dict); i + 1 < dict.items.size(); i += 2) {
      const Value& key = pickle_[dict.items[i]];
      std::string part;
      if (key.kind == ValueKind::kText) {
        part = PathPart(key.text);
      } else if (key.kind == ValueKind::kInt) {
        part = fmt::format("#{}", key.number);
      } else {
        return Fail(Code::kUnsupported, "{} holds tensors and has a key that is neither text nor int of 64 bits",
                    path.empty() ? "the state" : path);
      }
      MR_TRY(Walk(pickle_[dict.items[i + 1]], path.empty() ? part : fmt::format("{}/{}", path, part), depth + 1));
      if (!path.empty() || part != kMetaEntry) parts.push_back(std::move(part));
    }
    if (auto described = DescribeDict(parts, dict.kind == ValueKind::kCall))
      state_.dicts.emplace(path, *std::move(described));
    return {};
  }

  const Pickle& pickle_;
  ValueReader values_;
  TorchState state_;
  WalkBudget budget_;
};

/// Checks the argument `at` of a call that makes a tensor: bits that change what its bytes mean. torch writes "neg" of
/// the imaginary part of a conjugate, and "conj".
Status CheckTensorMetadata(const Pickle& pickle, std::span<const Pickle::Id> arguments, std::size_t at) {
  if (arguments.size() <= at || pickle[arguments[at]].kind != ValueKind::kDict) return {};
  const std::vector<Pickle::Id>& items = pickle[arguments[at]].items;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (pickle[items[i + 1]].kind == ValueKind::kBool && pickle[items[i + 1]].number == 0) continue;
    return Fail(Code::kUnsupported,
                "a tensor has the bit \"{}\"; save tensor.resolve_conj().resolve_neg() instead of the tensor",
                pickle[items[i]].text);
  }
  return {};
}

}  // namespace

std::span<const std::string_view> TorchGlobals() { return kGlobals; }

Result<std::optional<TorchTensor>> TensorOf(const Pickle& pickle, const Pickle::Value& value) {
  const Value* call = &value;
  for (int i = 0; i < 2 && pickle.IsCall(*call, "torch._utils._rebuild_parameter"); ++i) {
    if (pickle.Arguments(*call).empty()) return Fail(Code::kCorrupt, "a parameter has no tensor");
    call = &pickle[pickle.Arguments(*call)[0]];
  }
  if (call->kind != ValueKind::kCall) return std::optional<TorchTensor>();
  std::string_view function = pickle[call->items[0]].text;
  auto arguments = pickle.Arguments(*call);
  // A tensor with attributes: the function that makes the tensor, the tensor's class, the function's arguments, …. Only
  // pickles that are read with objects have it.
  if (function == "torch._tensor._rebuild_from_type_v2") {
    if (arguments.size() < 3) return Fail(Code::kCorrupt, "a tensor does not have the form that torch writes");
    function = pickle[arguments[0]].text;
    arguments = pickle[arguments[2]].items;
  }
  const bool typed = function == "torch._utils._rebuild_tensor_v2";
  if (!typed && function != "torch._utils._rebuild_tensor_v3") return std::optional<TorchTensor>();
  if (arguments.size() < (typed ? 4u : 7u) || pickle[arguments[1]].kind != ValueKind::kInt ||
      pickle[arguments[1]].number < 0) {
    return Fail(Code::kCorrupt, "a tensor does not have the form that torch writes");
  }
  MR_TRY(CheckTensorMetadata(pickle, arguments, typed ? 6 : 7));
  Storage storage = MR_TRY(StorageOf(pickle, pickle[arguments[0]]));
  if (!typed) {
    const std::string& name = pickle[arguments[6]].text;
    const TorchDType* found = FindTorchDType(name);
    if (found == nullptr) return Fail(Code::kUnsupported, "safetensors has no element type for {}", name);
    storage.dtype = found->dtype;
  }
  if (!storage.dtype) return Fail(Code::kCorrupt, "a tensor has no element type");
  std::vector<std::int64_t> shape = MR_TRY(Sizes(pickle, pickle[arguments[2]]));
  std::vector<std::int64_t> strides = MR_TRY(Sizes(pickle, pickle[arguments[3]]));
  TorchTensor tensor{.meta = {*storage.dtype, std::move(shape)},
                     .storage = std::move(storage.key),
                     .storage_bytes = storage.bytes,
                     .strides = std::move(strides)};
  MR_TRY(SettleView(tensor, pickle[arguments[1]].number));
  return tensor;
}

Result<Json> ValueOf(const Pickle& pickle, const Pickle::Value& value) { return ValueReader(pickle).Read(value); }

Result<TorchState> StateOf(const Pickle& pickle) { return StateReader(pickle).Read(); }
Result<TorchState> PartOf(const Pickle& pickle, const std::string& path) { return StateReader(pickle).ReadAt(path); }

std::optional<Json> DescribeDict(const std::vector<std::string>& parts, bool ordered) {
  std::vector<std::size_t> order(parts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return std::string_view(parts[i]); });
  Json described = Json::object();
  if (!std::ranges::is_sorted(order)) {
    std::vector<std::size_t> ranks(parts.size());  // of each part among the sorted parts
    for (std::size_t i = 0; i < order.size(); ++i) ranks[order[i]] = i;
    described["order"] = ranks;
  }
  if (ordered) described["type"] = "OrderedDict";
  return described.empty() ? std::nullopt : std::optional(std::move(described));
}

}  // namespace millrace::checkpoint
