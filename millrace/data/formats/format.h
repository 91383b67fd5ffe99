// Which format an object has, and how it is read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "millrace/base/result.h"
#include "millrace/data/content/content.h"

namespace millrace::data {

enum class Compression : std::uint8_t { kNone, kGzip, kZstd };

/// What the bytes are once decompressed.
enum class Layout : std::uint8_t {
  kJsonLines,  ///< a JSON object a line
  kJson,       ///< one JSON array whose elements are the records
  kLines,      ///< a document a line: field "text"
  kText,       ///< one document: field "text"
  kTar,        ///< samples of files with the same name but for their extension (webdataset)
  kArrow,      ///< Arrow IPC, stream or file
  kParquet,
  kMegatron,  ///< token ids, .bin with .idx
  kObjects,   ///< JSON objects one after another, over any number of lines each
};

struct Format {
  Layout layout = Layout::kJsonLines;
  Compression compression = Compression::kNone;
  std::string field = {};  ///< of kJson: of the object around the array; empty: the array is all there is
  bool operator==(const Format&) const = default;
  /// "jsonl", "lines+gzip", "json+gzip:data": what FormatOf takes.
  std::string Name() const;
};

/// The format of the object called `key` in a source whose format is `declared`: jsonl, json, objects, lines, text,
/// tar, arrow, parquet or megatron, with or without +gzip or +zstd, json also with a colon and the field that holds the
/// array; or empty. What is not declared the name says: by .jsonl .ndjson .json .jsonlist .txt .tar .arrow .parquet
/// .bin, followed by .gz or .zst; JSON lines where it says nothing. Fails with kInvalidArgument on an unknown word,
/// with kUnsupported on a name that ends like another compressor's.
Result<Format> FormatOf(std::string_view declared, std::string_view key);

/// As FormatOf; what is only called .json tells by how it begins whether it is an array. Fails also as LookAtJson
/// (json_array.h) does. Blocks where it must look.
Result<Format> FormatOf(std::string_view declared, const DataObject& object, object::Call call);

/// True unless the name of an object found under a folder says that it holds no records: what begins with '.', or with
/// '_' and does not end as data do, README and LICENSE, what describes a data set (dataset_info.json, .idx, .md,
/// .yaml…), checksums.
bool MayHoldRecords(std::string_view key);

/// How the records of `object` are got at; null for plain JSON lines. `fields`: those that somebody will ask for, which
/// spares formats that are columns the others; empty: all. Fails with kUnsupported where this build cannot.
Result<std::shared_ptr<const Content>> ContentFor(const DataObject& object, const Format& format,
                                                  std::span<const std::string> fields = {});

}  // namespace millrace::data
