// What an import reads, whatever its format: where the bytes of every tensor lie, and what else there is to keep.
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
#include "millrace/checkpoint/convert/source/foreign_format.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/object/connection.h"

namespace millrace::checkpoint {

/// A box of a tensor, where it lies in a file.
struct SourceBox {
  std::string tensor;
  Box box;  ///< by default all of it
  std::string file;
  std::uint64_t offset = 0;
  std::vector<std::int64_t> strides;  ///< in elements; empty: C order without gaps
};
/// Bytes of a file that have a checksum.
struct SourceChecksum {
  std::string file;
  std::uint64_t offset = 0, size = 0;
  std::uint32_t crc32 = 0;
};
struct ImportSource {
  ForeignFormat format = ForeignFormat::kHuggingFace;
  object::Location folder;  ///< the key: in front of the files' names
  std::string name;         ///< for messages
  std::map<std::string, object::ObjectInfo> files;
  std::map<std::string, TensorMeta> tensors;
  std::vector<SourceBox> pieces;  ///< of the tensors that have elements; they may share bytes
  std::vector<SourceChecksum> records;
  Json meta = Json::object();
  std::uint64_t left_out = 0;  ///< tensors that are none of the model's parameters: masks, tables of frequencies

  std::uint64_t TensorBytes() const;
  /// Puts another name in the place of a tensor's; nothing leaves the tensor out.
  void Rename(const std::function<std::optional<std::string>(const std::string&)>& renamed);
};

/// Puts the plain values of a state, by path, into the source's meta; kMetaEntry becomes meta itself.
Status TakeValues(std::map<std::string, Json> values, std::map<std::string, Json> dicts, ImportSource& source);
/// The files of a folder, those in folders below it not. kResourceExhausted beyond 100,000.
Result<std::map<std::string, object::ObjectInfo>> FilesOf(const object::Location& folder, const object::Call& call);
/// The URL's place as a folder: an empty key, or one with a slash at its end.
Result<object::Location> LocateFolder(object::Connection& connection, std::string_view url);
/// For messages: "s3://bucket/models/gpt2".
std::string NameOf(const object::Location& folder);

}  // namespace millrace::checkpoint
