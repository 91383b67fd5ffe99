// Converts between pickled Python states and the form of checkpoints: tensors by path, and plain values as JSON by
// path. docs/formats/checkpoint.md, "States of Python", defines paths and JSON; python/millrace/_state.py implements
// the same rules. Works on memory only.
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
#include "millrace/checkpoint/format/dtype.h"
#include "millrace/checkpoint/format/tensor_meta.h"

namespace millrace::checkpoint {

/// The deepest nesting of containers in a state. Bounds recursion. A guess, far above the nesting of real states.
inline constexpr int kMaxNesting = 64;

/// A tensor of an archive: a strided view of a storage.
struct TorchTensor {
  TensorMeta meta;
  std::string storage;                ///< name of its entry below "data/"
  std::uint64_t storage_bytes = 0;    ///< of the whole storage
  std::uint64_t offset = 0;           ///< of the first element, in bytes
  std::vector<std::int64_t> strides;  ///< in elements; empty: C order without gaps
};

/// Returns every global that torch.save writes for states of tensors and plain values, sorted. For Pickle::Read.
std::span<const std::string_view> TorchGlobals();

/// Returns the tensor that the value describes; nothing if the value is not a tensor.
/// Errors: kCorrupt if the tensor reaches beyond its storage; kUnsupported if safetensors lacks its element type.
Result<std::optional<TorchTensor>> TensorOf(const Pickle& pickle, const Pickle::Value& value);
/// Returns a plain value as JSON, as encode_value of python/millrace/_state.py does.
/// Errors: kUnsupported if the value is not plain; kResourceExhausted if it is too large or nested too deeply.
Result<Json> ValueOf(const Pickle& pickle, const Pickle::Value& value);

/// A state in the form of checkpoints.
struct TorchState {
  std::map<std::string, TorchTensor> tensors;  ///< by path
  std::map<std::string, Json> values;          ///< by path
  std::map<std::string, Json> dicts;           ///< by path: the content of kMetaDicts
};
/// Reads a state: a dict of tensors, plain values, and dicts, lists and tuples of them.
/// Errors: kUnsupported if the pickle is not a dict or holds another value; kCorrupt if a path occurs twice;
/// kResourceExhausted if the state is too large or nested too deeply.
Result<TorchState> StateOf(const Pickle& pickle);
/// Reads a part of a state whose path is `path`. The part need not be a dict. Fails as StateOf does.
Result<TorchState> PartOf(const Pickle& pickle, const std::string& path);
/// Returns the entry of kMetaDicts for a dict with these path components, in the dict's order: the order if it is not
/// sorted, and whether the dict is an OrderedDict. Returns nothing if the dict is sorted and plain.
std::optional<Json> DescribeDict(const std::vector<std::string>& parts, bool ordered);

/// Returns a text key as a path component, escaped.
std::string PathPart(std::string_view key);
/// A path component as a key or an index of Python.
struct PathKey {
  enum class KeyKind { kKey, kIntKey, kListIndex, kTupleIndex };
  KeyKind kind = KeyKind::kKey;
  std::string text;         ///< of a kKey
  std::int64_t number = 0;  ///< of all other kinds
};
/// Splits a path into its components.
/// Errors: kCorrupt if a component has a mark but no number.
Result<std::vector<PathKey>> PathOf(std::string_view path);

/// Writes a tensor in C order that is the whole storage `key`.
void WriteTensor(PickleWriter& out, const TensorMeta& meta, std::string_view key);
/// Writes an element type as a global, such as torch.bfloat16.
void WriteDType(PickleWriter& out, DType dtype);
/// Writes a plain value that is not a container.
/// Errors: kUnsupported if only the program that saved the value can read it ("torch" in docs/formats/checkpoint.md).
Status WriteValue(PickleWriter& out, const Json& value);

}  // namespace millrace::checkpoint
