#include "millrace/data/formats/format.h"

#include <algorithm>
#include <array>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/data/formats/decoded_content.h"
#include "millrace/data/formats/json_array.h"
#include "millrace/data/formats/syntax.h"
#include "millrace/data/formats/table.h"
#include "millrace/data/hdf5/sample_shard.h"
#include "millrace/data/records/arrow_plugin.h"

namespace millrace::data {
namespace {

constexpr std::array<std::string_view, 12> kLayouts = {"jsonl",   "json",     "lines",   "text", "tar",  "arrow",
                                                       "parquet", "megatron", "objects", "tsv",  "hdf5", "csv"};
constexpr std::array<std::string_view, 3> kCompressions = {"none", "gzip", "zstd"};
constexpr std::string_view kQuotes = "quotes", kNoHeader = "no_header", kCrEnds = "cr", kDelimiter = "delimiter=";
constexpr std::array<std::string_view, 7> kFormatWords = {"none",    "gzip",  "zstd",    kQuotes,
                                                          kNoHeader, kCrEnds, kDelimiter};

/// Delimiters that cannot stand for themselves in the name of a format.
constexpr std::array<std::pair<std::string_view, char>, 3> kNamedDelimiters = {
    {{"tab", '\t'}, {"space", ' '}, {"colon", ':'}}};

/// Objects with these names may be JSON lines, one array, or objects over several lines.
constexpr std::array<std::string_view, 4> kJsonNames = {".json", ".json.gz", ".json.zst", ".json.zstd"};

constexpr std::array<std::pair<std::string_view, RecordLayout>, 14> kSuffixes = {
    {{".jsonl", RecordLayout::kJsonLines},
     {".ndjson", RecordLayout::kJsonLines},
     {".jsonlist", RecordLayout::kJsonLines},
     {".json", RecordLayout::kJsonLines},
     {".txt", RecordLayout::kText},
     {".csv", RecordLayout::kCsv},
     {".tsv", RecordLayout::kTsv},
     {".tar", RecordLayout::kTar},
     {".arrow", RecordLayout::kArrow},
     {".feather", RecordLayout::kArrow},
     {".parquet", RecordLayout::kParquet},
     {".hdf5", RecordLayout::kHdf5},
     {".h5", RecordLayout::kHdf5},
     {".bin", RecordLayout::kMegatron}}};

/// Removes the compressor's suffix from `name`.
Result<Compression> TakeCompression(std::string& name) {
  if (name.ends_with(".tgz")) name.replace(name.size() - 3, 3, "tar.gz");
  for (auto [suffix, compression] :
       {std::pair{".gz", Compression::kGzip}, {".zst", Compression::kZstd}, {".zstd", Compression::kZstd}}) {
    if (!name.ends_with(suffix)) continue;
    name.resize(name.size() - std::string_view(suffix).size());
    return compression;
  }
  for (std::string_view other : {".bz2", ".xz", ".lz4", ".lzma", ".br", ".z", ".7z", ".zip", ".rar"}) {
    if (name.ends_with(other)) {
      return Fail(Code::kUnsupported,
                  "objects compressed as {} cannot be read; store them as .gz, .zst or uncompressed", other);
    }
  }
  return Compression::kNone;
}

/// Returns true if the suffix of the name tells a format.
bool IsNamedAsRecords(std::string name) {
  const auto compression = TakeCompression(name);
  return compression && std::ranges::any_of(kSuffixes, [&](const auto& one) { return name.ends_with(one.first); });
}

bool IsTable(const DataFormat& format) {
  return format.layout == RecordLayout::kCsv || format.layout == RecordLayout::kTsv;
}

Result<char> ParseDelimiter(std::string_view text) {
  for (const auto& [name, delimiter] : kNamedDelimiters) {
    if (text == name) return delimiter;
  }
  if (text.size() != 1 || static_cast<unsigned char>(text[0]) >= 0x80 || text.find_first_of("\"\r\n") != text.npos) {
    return Fail(Code::kInvalidArgument,
                "\"{}\" cannot be the delimiter of csv; use one ASCII character other than a quotation mark, or tab, "
                "space or colon",
                text);
  }
  return text[0];
}

/// Applies the words that follow the layout. Returns whether one of them is a compression.
Result<bool> ApplyWords(std::span<const std::string_view> words, DataFormat& format) {
  bool compressed = false;
  for (const std::string_view word : words) {
    if (word == kQuotes) {
      format.quotes = true;
    } else if (word == kNoHeader) {
      format.has_header = false;
    } else if (word == kCrEnds) {
      format.cr_ends = true;
    } else if (word.starts_with(kDelimiter)) {
      format.delimiter = MR_TRY(ParseDelimiter(word.substr(kDelimiter.size())));
    } else {
      const auto compression = std::ranges::find(kCompressions, word);
      if (compression == kCompressions.end()) {
        return Fail(Code::kInvalidArgument, "{}; known are gzip, zstd, no_header, quotes, delimiter= and cr",
                    UnknownName("word of a format", word, kFormatWords));
      }
      format.compression = static_cast<Compression>(compression - kCompressions.begin());
      compressed = true;
    }
  }
  return compressed;
}

Status CheckWords(const DataFormat& format, std::string_view declared) {
  const bool wrong = (format.quotes && format.layout != RecordLayout::kTsv) ||
                     (!format.has_header && !IsTable(format)) ||
                     (format.delimiter != 0 && format.layout != RecordLayout::kCsv) ||
                     (format.cr_ends && !IsTable(format) && format.layout != RecordLayout::kLines);
  if (!wrong) return {};
  return Fail(Code::kInvalidArgument,
              "format {}: quotes needs tsv; no_header, csv or tsv; delimiter, csv; and cr, csv, tsv or lines",
              declared);
}

}  // namespace

std::string DataFormat::Name() const {
  std::string name(kLayouts[static_cast<std::size_t>(layout)]);
  if (compression != Compression::kNone) {
    name += '+';
    name += kCompressions[static_cast<std::size_t>(compression)];
  }
  if (quotes) name += fmt::format("+{}", kQuotes);
  if (!has_header) name += fmt::format("+{}", kNoHeader);
  if (cr_ends) name += fmt::format("+{}", kCrEnds);
  if (delimiter != 0) {
    const auto named = std::ranges::find(kNamedDelimiters, delimiter, &std::pair<std::string_view, char>::second);
    name += fmt::format("+{}{}", kDelimiter,
                        named == kNamedDelimiters.end() ? std::string_view(&delimiter, 1) : named->first);
  }
  if (!field.empty()) name += fmt::format(":{}", field);
  return name;
}

Result<DataFormat> FormatOf(std::string_view declared, std::string_view key) {
  DataFormat format;
  std::string name = ToLower(key.substr(key.rfind('/') + 1));
  const std::size_t colon = declared.find(':');
  const bool named = colon != declared.npos;
  if (named) format.field = declared.substr(colon + 1);
  const std::vector<std::string_view> words = Split(declared.substr(0, colon), '+');
  const bool compression_declared = MR_TRY(ApplyWords(std::span(words).subspan(1), format));
  if (!compression_declared) {
    auto compression = TakeCompression(name);
    if (!compression) return Fail(compression.error().Context(std::string(key)));
    format.compression = *compression;
  }
  if (!words.front().empty()) {
    auto word = std::ranges::find(kLayouts, words.front());
    if (word == kLayouts.end()) {
      return Fail(Code::kInvalidArgument,
                  "{}; known are jsonl, json, objects, lines, text, csv, tsv, tar, arrow, parquet, hdf5, megatron",
                  UnknownName("format", words.front(), kLayouts));
    }
    format.layout = static_cast<RecordLayout>(word - kLayouts.begin());
  } else {
    for (auto [suffix, layout] : kSuffixes) {
      if (name.ends_with(suffix)) format.layout = layout;
    }
  }
  if (named && (format.field.empty() || format.layout != RecordLayout::kJson)) {
    return Fail(Code::kInvalidArgument,
                "format {}: what follows a colon must be the field of json that holds the records, as in json:data",
                declared);
  }
  MR_TRY(CheckWords(format, declared));
  return format;
}

Result<DataFormat> FormatOf(std::string_view declared, const DataObject& object, object::Call call) {
  DataFormat format = MR_TRY(FormatOf(declared, object.info.key));
  const bool by_name = declared.empty() || declared.starts_with('+');
  const std::string name = ToLower(object.info.key);
  const bool json = std::ranges::any_of(kJsonNames, [&](std::string_view ending) { return name.ends_with(ending); });
  if (by_name && json) format.layout = MR_TRY(LookAtJson(object, format.compression, call));
  if (IsTable(format)) {
    TableHeader header = MR_TRY(ReadTableHeader(object, format, call));
    format.field = std::move(header.row);
    format.cr_ends |= header.cr_ends;
  } else if (format.layout == RecordLayout::kLines && !format.cr_ends) {
    format.cr_ends = MR_TRY(LinesEndInCr(object, format.compression, call));
  }
  return format;
}

bool MayHoldRecords(std::string_view key) {
  const std::string name = ToLower(key.substr(key.rfind('/') + 1));
  if (name.starts_with('.') || (name.starts_with('_') && !IsNamedAsRecords(name))) return false;
  for (std::string_view start : {"readme", "license", "licence", "copying", "checksums", "sha256sums", "md5sums"}) {
    if (name.starts_with(start)) return false;
  }
  for (std::string_view whole : {"config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json",
                                 "state.json", "index.json", "manifest.json", "report.json"}) {
    if (name == whole) return false;
  }
  constexpr std::array<std::string_view, 17> kOther = {".idx",  ".index", ".md",     ".rst",  ".yaml", ".yml",
                                                       ".toml", ".py",    ".pdf",    ".html", ".png",  ".jpg",
                                                       ".crc",  ".md5",   ".sha256", ".sha1", ".lock"};
  return std::ranges::none_of(kOther, [&](std::string_view suffix) { return name.ends_with(suffix); });
}

Result<std::shared_ptr<const Content>> ContentFor(const DataObject& object, const DataFormat& format,
                                                  std::span<const std::string> fields) {
  const bool plain = format.compression == Compression::kNone;
  switch (format.layout) {
    case RecordLayout::kJsonLines:
      if (plain) return nullptr;
      [[fallthrough]];
    case RecordLayout::kJson:
    case RecordLayout::kObjects:
    case RecordLayout::kLines:
    case RecordLayout::kText:
    case RecordLayout::kCsv:
    case RecordLayout::kTsv:
    case RecordLayout::kTar:
      return MakeDecodedContent(object, format);
    case RecordLayout::kArrow:
    case RecordLayout::kParquet:
      if (!plain) break;
      return OpenArrowContent(object, format.layout == RecordLayout::kArrow ? ArrowFormat::kIpc : ArrowFormat::kParquet,
                              {fields.begin(), fields.end()});
    case RecordLayout::kHdf5:
      if (!plain) break;
      return MakeSampleShard(object);
    case RecordLayout::kMegatron:
      break;  // token ids: no content
  }
  return Fail(Code::kUnsupported, "{}: {} cannot be read in the middle; store it uncompressed", object.url,
              format.Name());
}

}  // namespace millrace::data
