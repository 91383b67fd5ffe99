// What torch saves, seen as a checkpoint has it: tensors by a path, and plain values as JSON; and back. The paths and
// the JSON are those of python/millrace (docs/formats/checkpoint.md, "States of Python"). Bytes in, bytes out; no
// stores.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/torch/pickle.h"
#include "millrace/checkpoint/format/manifest.h"

namespace millrace::checkpoint {

/// As deep as containers of a state may lie in each other.
inline constexpr int kMaxNesting = 64;

/// A tensor of an archive: a view of a storage.
struct TorchTensor {
  TensorMeta meta;
  std::string storage;                ///< name of its entry below "data/"
  std::uint64_t storage_bytes = 0;    ///< of the whole storage
  std::uint64_t offset = 0;           ///< of the first element, in bytes
  std::vector<std::int64_t> strides;  ///< in elements; empty: C order without gaps
};

/// Every name that torch.save writes for states of tensors and plain values, sorted.
std::span<const std::string_view> TorchGlobals();

/// Nothing where the value is no tensor. kCorrupt where it reaches beyond its storage, kUnsupported where its elements
/// are of a type that safetensors lacks.
Result<std::optional<TorchTensor>> TensorOf(const Pickle& pickle, const Pickle::Value& value);
/// A plain value as JSON: millrace._state.encode_value in C++. kUnsupported where it is none.
Result<Json> ValueOf(const Pickle& pickle, const Pickle::Value& value);

struct TorchState {
  std::map<std::string, TorchTensor> tensors;  ///< by path
  std::map<std::string, Json> values;          ///< by path
  std::map<std::string, Json> dicts;           ///< by path, of meta's member kMetaDicts
};
/// A dict of tensors, plain values, and dicts, lists and tuples of them.
Result<TorchState> StateOf(const Pickle& pickle);
/// The same for a part of a state, found at `path`: a tensor, a plain value, a dict, a list or a tuple.
Result<TorchState> PartOf(const Pickle& pickle, const std::string& path);
/// What kMetaDicts says of a dict: the order of its parts where they are not sorted, and whether it is an OrderedDict.
/// Nothing where there is nothing to say.
std::optional<Json> DescribeDict(const std::vector<std::string>& parts, bool ordered);

/// One part of a path.
std::string PathPart(std::string_view key);
/// A path's parts as Python's keys: text, or an int for those with a mark.
struct PathKey {
  enum class KeyKind { kKey, kIntKey, kListIndex, kTupleIndex };
  KeyKind kind = KeyKind::kKey;
  std::string text;
  std::int64_t number = 0;
};
Result<std::vector<PathKey>> PathOf(std::string_view path);

/// A tensor in C order that is all of storage `key`, for torch to load.
void WriteTensor(PickleWriter& out, const TensorMeta& meta, std::string_view key);
/// The dtype's name in torch, "bfloat16", behind the module's.
void WriteDType(PickleWriter& out, DType dtype);
/// One value that holds no others: kUnsupported where it is an object that only the program which saved it knows.
Status WriteValue(PickleWriter& out, const Json& value);

}  // namespace millrace::checkpoint
