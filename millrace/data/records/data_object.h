// One version of one object, and reads of its bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/object/store.h"

namespace millrace::data {

class Content;

struct DataObject {
  std::shared_ptr<object::Store> store;
  object::ObjectInfo info;
  std::string url;  ///< "s3://bucket/key" or an absolute path, for messages and fingerprints
  std::shared_ptr<const Content> content = nullptr;  ///< null: the object's own lines are its content
  /// 2 or 4: the object is a Megatron .bin without content. Its records are token ids of that many bytes, with the BOS
  /// and EOS that they are to have. 0: its records are text.
  int token_bytes = 0;
  std::shared_ptr<const object::ObjectInfo> table = nullptr;  ///< with token_bytes: the .idx beside the object
  std::string declared_format;  ///< what the README of its folder says of its format, for FormatOf; empty: nothing
};

/// Reads `into.size()` bytes at `offset`. Blocks.
/// Errors: kStale if the object has changed; else those of the store, with `purpose` ("indexing", "reading records of")
/// in front.
Status ReadRange(const DataObject& object, std::uint64_t offset, MutableByteSpan into, std::string_view purpose,
                 object::Call call);
/// Judges the result of such a read that the caller made itself. Errors: as ReadRange.
Status CheckRange(const DataObject& object, std::uint64_t offset, std::uint64_t bytes, std::string_view purpose,
                  Result<std::optional<object::GetResult>> got);

}  // namespace millrace::data
