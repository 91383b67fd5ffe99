// The description of a foreign checkpoint for an import. It says where the bytes of every tensor are, and which plain
// values the checkpoint holds. Each format has a function that opens its files and returns an ImportSource.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/checkpoint/convert/tensors/foreign_format.h"
#include "millrace/checkpoint/format/box.h"
#include "millrace/checkpoint/format/tensor_meta.h"
#include "millrace/object/connection.h"

namespace millrace::checkpoint {

/// The coding of a box's bytes, if they are not its elements in C order. They are decoded by units, which follow each
/// other in the file and in the box.
struct SourceCoding {
  std::uint64_t stored_unit = 0, unit = 0;  ///< bytes of a unit in the file, and in the tensor
  /// Decodes whole units.
  std::function<void(ByteSpan stored, MutableByteSpan elements)> decode;
};
/// A box of a tensor and the place of its bytes in a file.
struct SourceBox {
  std::string tensor;
  Box box;  ///< by default the whole tensor
  std::string file;
  std::uint64_t offset = 0;           ///< of the box's first element, in bytes
  std::vector<std::int64_t> strides;  ///< in elements; empty: C order without gaps
  /// The run of consecutive elements of the box, in C order, that the bytes are. The offset is that of its first
  /// element. Without elements, the bytes are the whole box. A run has no strides.
  std::uint64_t begin = 0, elements = 0;
  std::shared_ptr<const SourceCoding> coding = nullptr;  ///< null: elements, by `strides`. REQUIRES: no strides, no run
};
/// A byte range of a file and its CRC-32, which the program that wrote the file stored.
struct SourceChecksum {
  std::string file;
  std::uint64_t offset = 0, size = 0;
  std::uint32_t crc32 = 0;
};
/// Facts of a foreign checkpoint that the user knows and that its files may lack.
struct SourceOptions {
  std::optional<Json> config;  ///< the model's Hugging Face config.json
};
/// A foreign checkpoint, opened but not read. Plain data; it holds the store alive.
struct ImportSource {
  ForeignFormat format = ForeignFormat::kHuggingFace;
  object::Location folder;                          ///< its key is the prefix of all files' keys
  std::string name;                                 ///< for messages
  std::map<std::string, object::ObjectInfo> files;  ///< by name below the folder
  std::map<std::string, TensorMeta> tensors;        ///< by name in the checkpoint
  std::vector<SourceBox> boxes;                     ///< of all tensors that have elements; boxes may share bytes
  std::vector<SourceChecksum> checksums;            ///< of the byte ranges that have one
  Json meta = Json::object();                       ///< for the manifest
  std::uint64_t left_out =
      0;  ///< how many tensors are not the model's parameters, such as masks; they are not imported
  std::optional<std::uint64_t> step;  ///< the training step, if the files have it
  std::vector<std::string> notes;     ///< sentences for the user: what was not imported, and why

  /// Returns the bytes of all tensors. Bytes that tensors share count for each of them.
  std::uint64_t TensorBytes() const;
  /// Renames every tensor to the result of `renamed`. Removes the tensor if the result is empty.
  void Rename(const std::function<std::optional<std::string>(const std::string&)>& renamed);
};

/// Adds the plain values and the dict descriptions of a state to source.meta. Both are keyed by path. The content of
/// the entry kMetaEntry, if there is one, replaces source.meta first.
/// Errors: kCorrupt if kMetaEntry is not the text of a JSON object.
Status TakeValues(std::map<std::string, Json> values, std::map<std::string, Json> dicts, ImportSource& source);
/// Returns the files directly in a folder, by name. Ignores subfolders. Blocks.
/// Errors: kResourceExhausted if there are more than 100,000.
Result<std::map<std::string, object::ObjectInfo>> FilesOf(const object::Location& folder, const object::Call& call);
/// Returns the location of `url` as a folder: its key is empty or ends with a slash.
Result<object::Location> LocateFolder(object::Connection& connection, std::string_view url);
/// Returns the folder's name for messages, such as "s3://bucket/models/gpt2".
std::string NameOf(const object::Location& folder);

}  // namespace millrace::checkpoint
