#include "millrace/data/arrow/parquet_content.h"

#include <fmt/ranges.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "millrace/base/text.h"
#include "millrace/base/threads/sync.h"
#include "millrace/data/arrow/json_rows.h"
#include "millrace/data/arrow/memory.h"
#include "millrace/data/arrow/parquet_pages.h"
#include "millrace/data/arrow/status.h"
#include "millrace/data/arrow/store_file.h"

namespace millrace::data::arrow_format {
namespace {

/// The least that a frame of small row groups decodes to. 512 KiB: the size of a chunk of plain records (order/plan.h).
constexpr std::uint64_t kParquetFrameBytes = 512 * kKiB;
/// The end of the object that the first read fetches. A guess: the footer fits, so that one request is enough.
constexpr std::uint64_t kFooterBytes = 256 * kKiB;
/// Row groups of more than 8 MiB are read in slices of about 4 MiB (kFrameTarget). 8 MiB is a guess: a slice decodes
/// the pages that it shares with its neighbours again, so a row group is cut only where that saves much.
constexpr std::uint64_t kGroupSplitBytes = 8 * kMiB, kGroupSliceBytes = 4 * kMiB;
/// Rows that become lines at a time. A guess: the arrays stay small beside the lines.
constexpr std::int64_t kBatchRows = 1024;

/// The footer and the wanted columns. Immutable.
struct Footer {
  std::shared_ptr<parquet::FileMetaData> metadata;
  std::vector<int> columns;  ///< leaves of the wanted top-level columns
};

class ParquetContent final : public Content {
 public:
  ParquetContent(DataObject object, std::vector<std::string> fields)
      : object_(std::move(object)),
        fields_(std::move(fields)),
        format_(fmt::format("parquet({})", fmt::join(fields_, ","))) {}

  std::string_view format() const override { return format_; }

  Status FindFrames(const FrameSink& found, object::Call call) const override {
    auto file = std::make_shared<StoreFile>(object_, call);
    Status outcome = Guard(object_.url, [&]() -> Status {
      auto footer = MR_TRY(LoadFooter(call));
      const int groups = footer->metadata->num_row_groups();
      for (int first = 0; first < groups;) {
        if (MR_TRY(ContentOf(*footer, first)) > kGroupSplitBytes) {
          MR_TRY(FindSlices(*footer, first++, file, found));
          continue;
        }
        int count = 0;
        std::uint64_t bytes = 0;
        object::ByteRange range{object_.info.size, 0};
        while (first + count < groups && bytes < kParquetFrameBytes) {
          const std::uint64_t more = MR_TRY(ContentOf(*footer, first + count));
          // A large row group is a frame of its own.
          if (count > 0 && bytes + more > 2 * kParquetFrameBytes) break;
          MR_TRY(CheckSize(first + count, more));
          for (const object::ByteRange& chunk : MR_TRY(ChunksOf(*footer, first + count))) {
            std::uint64_t end = std::max(range.offset + range.length, chunk.offset + chunk.length);
            if (range.length == 0) end = chunk.offset + chunk.length;
            range.offset = std::min(range.offset, chunk.offset);
            range.length = end - range.offset;
          }
          bytes += more;
          ++count;
        }
        MR_TRY(
            found({.offset = range.offset, .bytes = range.length, .state = EncodeState(first, count)}, std::nullopt));
        first += count;
      }
      return {};
    });
    if (!outcome && file->error()) return Fail(*file->error());
    return outcome;
  }

  Result<Buffer> ReadFrame(const Frame& frame, object::Call call) const override {
    std::string what = fmt::format("{}: the row groups at byte {}", object_.url, frame.offset);
    auto file = std::make_shared<StoreFile>(object_, call);
    auto content = Guard(what, [&] { return ReadGroups(frame, file, what, call); });
    // The store's error has the code and the cause; Parquet's reader passes on only its text.
    if (!content && file->error()) return Fail(*file->error());
    return content;
  }

 private:
  static std::string EncodeState(int first, int count) {
    std::array<std::byte, 8> state;
    StoreLittle(state.data(), first);
    StoreLittle(state.data() + 4, count);
    return std::string(AsText(state));
  }

  Result<Buffer> ReadGroups(const Frame& frame, const std::shared_ptr<StoreFile>& file, const std::string& what,
                            object::Call call) const {
    auto footer = MR_TRY(LoadFooter(call));
    MemoryLimit memory;
    if (RowSlice::IsOne(frame.state)) {
      const RowSlice slice = MR_TRY(RowSlice::Parse(frame.state, *footer->metadata, footer->columns, object_));
      auto table = MR_TRY(ReadSlice(slice, object_, footer->metadata, footer->columns, memory.pool(), what, call));
      arrow::TableBatchReader batches(*table);
      batches.set_chunksize(kBatchRows);
      return ToLines(batches, what);
    }
    std::int32_t first = -1, count = 0, groups = footer->metadata->num_row_groups();
    if (frame.state.size() == 8) {
      first = LoadLittle<std::int32_t>(AsBytes(frame.state).data());
      count = LoadLittle<std::int32_t>(AsBytes(frame.state).data() + 4);
    }
    if (first < 0 || count < 1 || first > groups || count > groups - first) {
      return Fail(Code::kCorrupt, "{}: the index names row groups that it lacks; delete the index", what);
    }
    std::vector<object::ByteRange> ranges;
    std::uint64_t bytes = 0;
    for (int group = first; group < first + count; ++group) {
      bytes += MR_TRY(ContentOf(*footer, group));
      MR_TRY(CheckSize(group, bytes));
      for (const object::ByteRange& chunk : MR_TRY(ChunksOf(*footer, group))) ranges.push_back(chunk);
    }
    MR_TRY(file->Fetch(std::move(ranges)));

    parquet::ArrowReaderProperties properties(/*use_threads=*/false);
    properties.set_pre_buffer(false);
    properties.set_batch_size(kBatchRows);
    auto reader = MR_ARROW_TRY(
        what, parquet::arrow::FileReader::Make(
                  memory.pool(),
                  parquet::ParquetFileReader::Open(file, parquet::ReaderProperties(memory.pool()), footer->metadata),
                  properties));
    std::vector<int> numbers(count);
    std::iota(numbers.begin(), numbers.end(), first);
    auto batches = MR_ARROW_TRY(what, reader->GetRecordBatchReader(numbers, footer->columns));
    return ToLines(*batches, what);
  }

  static Result<Buffer> ToLines(arrow::RecordBatchReader& batches, const std::string& what) {
    RecordLines lines;
    std::shared_ptr<arrow::RecordBatch> batch;
    while (true) {
      MR_ARROW_TRY(what, batches.ReadNext(&batch));
      if (!batch) break;
      MR_TRY(AppendRows(*batch, what, lines));
    }
    return lines.TakeLines();
  }

  /// Cuts a row group that is too large for a frame into slices of a few pages each.
  Status FindSlices(const Footer& footer, int group, const std::shared_ptr<StoreFile>& file,
                    const FrameSink& found) const {
    const auto rows = static_cast<std::uint64_t>(footer.metadata->RowGroup(group)->num_rows());
    const std::vector<object::ByteRange> chunks = MR_TRY(ChunksOf(footer, group));
    std::vector<std::vector<PageAt>> pages;
    MemoryLimit memory;
    for (int column : footer.columns) {
      pages.push_back(MR_TRY(LocatePages(file, footer.metadata, group, column, object_, memory.pool())));
    }
    const std::uint64_t content = MR_TRY(ContentOf(footer, group));
    for (const RowSlice& slice : CutRows(group, rows, pages, chunks, content, kGroupSliceBytes)) {
      MR_TRY(CheckSize(group, slice.bytes()));
      auto largest = std::ranges::max_element(slice.columns, {}, &RowSlice::Pages::bytes);
      MR_TRY(found({.offset = largest->offset, .bytes = largest->bytes, .state = slice.Encode()}, std::nullopt));
    }
    return {};
  }

  Result<std::vector<object::ByteRange>> ChunksOf(const Footer& footer, int group) const {
    std::vector<object::ByteRange> chunks;
    for (int column : footer.columns) chunks.push_back(MR_TRY(ChunkRange(*footer.metadata, group, column, object_)));
    return chunks;
  }

  /// Returns the decompressed bytes of a row group's wanted columns.
  Result<std::uint64_t> ContentOf(const Footer& footer, int group) const {
    auto row_group = footer.metadata->RowGroup(group);
    std::uint64_t bytes = 0;
    for (int column : footer.columns) {
      MR_TRY(ChunkRange(*footer.metadata, group, column, object_));
      bytes += static_cast<std::uint64_t>(row_group->ColumnChunk(column)->total_uncompressed_size());
    }
    return bytes;
  }

  Status CheckSize(int group, std::uint64_t bytes) const {
    if (bytes <= kMaxFrameContent) return {};
    return Fail(Code::kUnsupported,
                "{}: row group {} holds {} of the columns wanted in a page each, "
                "and no more than {} can be held; write smaller ones (pandas and pyarrow: row_group_size=10000)",
                object_.url, group, FormatBytes(bytes), FormatBytes(kMaxFrameContent));
  }

  /// Returns the footer. Reads it in the first call.
  Result<std::shared_ptr<const Footer>> LoadFooter(object::Call call) const {
    MutexLock lock(mutex_);
    if (footer_) return footer_;
    auto file = std::make_shared<StoreFile>(object_, call);
    auto footer = std::make_shared<Footer>();
    std::uint64_t tail = std::min(kFooterBytes, object_.info.size);
    MR_TRY(file->Fetch({{object_.info.size - tail, tail}}));
    MR_TRY(CheckMagic(*file));
    Status parsed = Guard(object_.url, [&]() -> Status {
      footer->metadata = parquet::ReadMetaData(file);
      return {};
    });
    if (!parsed) return Fail(file->error() ? *file->error() : parsed.error());
    const parquet::SchemaDescriptor& schema = *footer->metadata->schema();
    std::vector<std::string> names;
    for (int i = 0; i < schema.group_node()->field_count(); ++i) names.push_back(schema.group_node()->field(i)->name());
    std::vector<std::string> wanted;
    for (int i : MR_TRY(ChooseColumns(names, fields_, object_.url))) wanted.push_back(names[i]);
    for (int i = 0; i < schema.num_columns(); ++i) {
      if (std::ranges::find(wanted, schema.GetColumnRoot(i)->name()) != wanted.end()) footer->columns.push_back(i);
    }
    if (footer->metadata->is_encryption_algorithm_set()) MR_TRY(CheckColumns(*footer));
    footer_ = footer;
    return footer_;
  }

  /// Refuses a file with an encrypted footer, which its last bytes tell.
  Status CheckMagic(StoreFile& file) const {
    constexpr std::string_view kEncrypted = "PARE";
    if (object_.info.size < kEncrypted.size()) return {};
    const auto magic =
        MR_ARROW_TRY(object_.url, file.ReadAt(static_cast<std::int64_t>(object_.info.size - kEncrypted.size()),
                                              static_cast<std::int64_t>(kEncrypted.size())));
    if (std::string_view(*magic) != kEncrypted) return {};
    return Encrypted("the Parquet file");
  }

  /// Refuses an encrypted column among the wanted ones. A file with a plain footer can have such columns.
  Status CheckColumns(const Footer& footer) const {
    for (int group = 0; group < footer.metadata->num_row_groups(); ++group) {
      for (int column : footer.columns) {
        if (!IsEncrypted(*footer.metadata->RowGroup(group), column)) continue;
        return Encrypted(
            fmt::format("the column {}", footer.metadata->schema()->Column(column)->path()->ToDotString()));
      }
    }
    return {};
  }

  static bool IsEncrypted(parquet::RowGroupMetaData& group, int column) {
    try {
      return group.ColumnChunk(column)->crypto_metadata() != nullptr;
    } catch (const parquet::ParquetException&) {
      return true;  // the column has its own key, which its metadata need too
    }
  }

  std::unexpected<Error> Encrypted(std::string_view what) const {
    return Fail(Code::kUnsupported,
                "{}: {} is encrypted, and Millrace has no keys; write it anew without encryption, with a program that "
                "has the keys (pyarrow: decryption_properties)",
                object_.url, what);
  }

  const DataObject object_;
  const std::vector<std::string> fields_;
  const std::string format_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<const Footer> footer_ MR_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<const Content> MakeParquetContent(DataObject object, std::vector<std::string> fields) {
  return std::make_shared<ParquetContent>(std::move(object), std::move(fields));
}

}  // namespace millrace::data::arrow_format
