// The formats of objects: which one an object has, and how its records are read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "millrace/base/result.h"
#include "millrace/data/compression/compression.h"
#include "millrace/data/records/content.h"

namespace millrace::data {

/// The layout of records in the decompressed bytes.
enum class RecordLayout : std::uint8_t {
  kJsonLines,  ///< a JSON object a line
  kJson,       ///< one JSON array whose elements are the records
  kLines,      ///< a document a line: field "text"
  kText,       ///< one document: field "text"
  kTar,        ///< samples of files with the same name but for their extension (webdataset)
  kArrow,      ///< Arrow IPC, stream or file
  kParquet,
  kMegatron,  ///< token ids, .bin with .idx
  kObjects,   ///< JSON objects one after another, over any number of lines each
  kTsv,       ///< fields between tabs (formats/table.h)
  kHdf5,      ///< samples of BERT's pre-training with their masks (hdf5/sample_shard.h)
  kCsv,       ///< fields between commas (formats/table.h)
};

struct DataFormat {
  RecordLayout layout = RecordLayout::kJsonLines;
  Compression compression = Compression::kNone;
  /// kJson: the field of the outermost object that holds the array; empty: no object around it. kCsv, kTsv: the result
  /// of ReadTableHeader.
  std::string field = {};
  bool quotes = false;     ///< kTsv: fields may be quoted, as those of kCsv
  bool has_header = true;  ///< kCsv, kTsv: the first row has the names of the fields
  char delimiter = 0;      ///< kCsv: between fields; 0: a comma
  bool cr_ends = false;    ///< kCsv, kTsv, kLines: rows end with '\r' alone
  bool operator==(const DataFormat&) const = default;
  /// Returns "jsonl", "lines+gzip", "json+gzip:data" or the like, as FormatOf takes it.
  std::string Name() const;
};

/// Returns the format of the object called `key` in a source whose format is `declared`. `declared` is empty or one of
/// jsonl, json, objects, lines, text, csv, tsv, tar, arrow, parquet, hdf5 and megatron. Words may follow: "+gzip",
/// "+zstd" or "+none"; "+no_header" after csv and tsv; "+quotes" after tsv; "+delimiter=;" after csv, with any other
/// ASCII character or the words tab, space and colon; "+cr" after csv, tsv and lines; and after json a colon and the
/// field that holds the array. What is not declared depends on the name: .jsonl .ndjson .json .jsonlist .txt .csv .tsv
/// .tar .arrow .parquet .hdf5 or .bin, followed by .gz or .zst. Other names are JSON lines. Errors: kInvalidArgument if
/// a word is unknown; kUnsupported if the name ends like another compressor's.
Result<DataFormat> FormatOf(std::string_view declared, std::string_view key);

/// As above. Reads the beginning of an object that is only called .json, to see whether it is an array, and the first
/// row of csv, tsv and lines, to see how rows end. Then blocks.
/// Errors: also those of LookAtJson (json_array.h) and ReadTableHeader (table.h).
Result<DataFormat> FormatOf(std::string_view declared, const DataObject& object, object::Call call);

/// Returns false if an object found in a folder holds no records by its name: names that begin with '.'; names that
/// begin with '_' and do not end as data do; README, LICENSE and checksums; files that describe a data set
/// (dataset_info.json, .idx, .md, .yaml and others).
bool MayHoldRecords(std::string_view key);

/// Returns the reader of the object's records; null for plain JSON lines. `fields` are the fields that will be used, so
/// that columnar formats can leave out the others. Empty: all.
/// Errors: kUnsupported if this build cannot read the format.
Result<std::shared_ptr<const Content>> ContentFor(const DataObject& object, const DataFormat& format,
                                                  std::span<const std::string> fields = {});

}  // namespace millrace::data
