#include "millrace/data/arrow/parquet_pages.h"

#include <arrow/array.h>
#include <arrow/array/concatenate.h>
#include <arrow/buffer.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <arrow/util/config.h>
#include <parquet/arrow/reader.h>
#include <parquet/column_page.h>
#include <parquet/column_reader.h>
#include <parquet/file_reader.h>
#include <parquet/page_index.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/data/arrow/status.h"

namespace millrace::data::arrow_format {
namespace {

/// Bytes of a read that looks for a page's header. A guess: headers have some hundred bytes, pages often 1 MiB.
constexpr std::int64_t kPageWindowBytes = 64 * kKiB;
/// Parquet's buffer for a stream. A guess: it reads from memory, so a small buffer costs nothing.
constexpr std::int64_t kStreamBytes = 256 * kKiB;
/// u64 words of a slice's state, and of each column in it (README.md).
constexpr std::size_t kFixedWords = 2, kPageWords = 4;

/// A column chunk as a stream. It does not fetch pages that the reader skips.
class HeaderStream final : public arrow::io::InputStream {
 public:
  HeaderStream(std::shared_ptr<StoreFile> file, object::ByteRange chunk)
      : file_(std::move(file)), at_(static_cast<std::int64_t>(chunk.offset)), end_(at_ + Signed(chunk.length)) {}

  /// The next Read() returns no bytes and fetches nothing.
  void SkipNext() { skip_ = true; }
  /// Returns the offset of the latest Read().
  std::uint64_t last() const { return static_cast<std::uint64_t>(last_); }

  arrow::Result<std::string_view> Peek(std::int64_t bytes) override {
    bytes = std::min(bytes, end_ - at_);
    if (!window_ || at_ < window_at_ || at_ + bytes > window_at_ + window_->size()) {
      ARROW_ASSIGN_OR_RAISE(window_, file_->ReadAt(at_, std::min(std::max(bytes, kPageWindowBytes), end_ - at_)));
      window_at_ = at_;
    }
    return std::string_view(*window_).substr(static_cast<std::size_t>(at_ - window_at_),
                                             static_cast<std::size_t>(bytes));
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(std::int64_t bytes) override {
    bytes = std::min(bytes, end_ - at_);
    last_ = at_;
    at_ += bytes;
    if (std::exchange(skip_, false)) return std::make_shared<arrow::Buffer>(nullptr, 0);
    return file_->ReadAt(last_, bytes);
  }
  arrow::Result<std::int64_t> Read(std::int64_t bytes, void* into) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, Read(bytes));
    std::copy_n(buffer->data(), buffer->size(), static_cast<std::uint8_t*>(into));
    return buffer->size();
  }
  arrow::Result<std::int64_t> Tell() const override { return at_; }
  arrow::Status Close() override { return arrow::Status::OK(); }
  bool closed() const override { return false; }

 private:
  static std::int64_t Signed(std::uint64_t value) { return static_cast<std::int64_t>(value); }

  const std::shared_ptr<StoreFile> file_;
  std::int64_t at_;
  const std::int64_t end_;
  std::int64_t last_ = 0;
  bool skip_ = false;
  std::shared_ptr<arrow::Buffer> window_;
  std::int64_t window_at_ = 0;
};

std::unique_ptr<parquet::PageReader> OpenPages(std::shared_ptr<HeaderStream> stream,
                                               const parquet::ColumnChunkMetaData& chunk,
                                               [[maybe_unused]] const parquet::ColumnDescriptor& column,
                                               arrow::MemoryPool* pool) {
  const parquet::ReaderProperties properties(pool);
#if ARROW_VERSION_MAJOR >= 25
  return parquet::PageReader::Open(std::move(stream), chunk.num_values(), chunk.compression(), properties, column);
#else
  return parquet::PageReader::Open(std::move(stream), chunk.num_values(), chunk.compression(), properties);
#endif
}

/// The number of rows that begin on a page, and whether the page's first value begins a row.
struct RowStarts {
  std::uint64_t rows = 0;
  bool at_first = true;
};
RowStarts CountRowStarts(const parquet::DataPageV1& page, std::int16_t max_level) {
  parquet::LevelDecoder decoder;
  decoder.SetData(page.repetition_level_encoding(), max_level, page.num_values(), page.data(), page.size());
  RowStarts starts;
  std::array<std::int16_t, 1024> levels;
  bool first = true;
  while (const int count = decoder.Decode(static_cast<int>(levels.size()), levels.data())) {
    if (std::exchange(first, false)) starts.at_first = levels[0] == 0;
    starts.rows += static_cast<std::uint64_t>(std::count(levels.begin(), levels.begin() + count, std::int16_t{0}));
  }
  return starts;
}

std::vector<PageAt> ScanHeaders(const std::shared_ptr<StoreFile>& file, const parquet::FileMetaData& metadata,
                                int group, int column, object::ByteRange range, arrow::MemoryPool* pool) {
  const parquet::ColumnDescriptor& descriptor = *metadata.schema()->Column(column);
  const std::int16_t max_level = descriptor.max_repetition_level();
  auto stream = std::make_shared<HeaderStream>(file, range);
  auto reader = OpenPages(stream, *metadata.RowGroup(group)->ColumnChunk(column), descriptor, pool);
  std::vector<PageAt> pages;
  std::uint64_t rows = 0;
  reader->set_data_page_filter([&](const parquet::DataPageStats& page) {
    pages.push_back({.offset = stream->last(), .first_row = rows});
    if (max_level > 0 && !page.num_rows) return false;
    rows += static_cast<std::uint64_t>(std::max(0, max_level > 0 ? *page.num_rows : page.num_values));
    stream->SkipNext();
    return true;
  });
  while (auto page = reader->NextPage()) {
    if (page->type() != parquet::PageType::DATA_PAGE || pages.empty()) continue;
    const RowStarts starts = CountRowStarts(static_cast<const parquet::DataPageV1&>(*page), max_level);
    if (!starts.at_first && rows == 0) return {};
    pages.back().starts_row = starts.at_first;
    if (!starts.at_first) --pages.back().first_row;
    rows += starts.rows;
  }
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const std::uint64_t end = i + 1 < pages.size() ? pages[i + 1].offset : range.offset + range.length;
    pages[i].bytes = end - pages[i].offset;
  }
  if (rows != static_cast<std::uint64_t>(metadata.RowGroup(group)->num_rows())) pages.clear();
  return pages;
}

std::vector<PageAt> FromOffsetIndex(const std::shared_ptr<StoreFile>& file,
                                    const std::shared_ptr<parquet::FileMetaData>& metadata, int group, int column) {
  auto reader = parquet::ParquetFileReader::Open(file, parquet::default_reader_properties(), metadata);
  auto indexes = reader->GetPageIndexReader();
  auto of_group = indexes ? indexes->RowGroup(group) : nullptr;
  auto index = of_group ? of_group->GetOffsetIndex(column) : nullptr;
  std::vector<PageAt> pages;
  if (!index) return pages;
  for (const parquet::PageLocation& page : index->page_locations()) {
    pages.push_back({static_cast<std::uint64_t>(page.offset), static_cast<std::uint64_t>(page.compressed_page_size),
                     static_cast<std::uint64_t>(page.first_row_index)});
  }
  return pages;
}

/// Returns true if the pages are in order, within the chunk, and begin with row 0.
bool AreSound(const std::vector<PageAt>& pages, object::ByteRange chunk, std::uint64_t rows) {
  if (pages.empty() || pages[0].first_row != 0 || !pages[0].starts_row) return false;
  std::uint64_t end = chunk.offset;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const PageAt& page = pages[i];
    if (page.offset < end || page.bytes > chunk.length || page.offset - chunk.offset > chunk.length - page.bytes) {
      return false;
    }
    if (page.first_row > rows || (i > 0 && page.first_row < pages[i - 1].first_row)) return false;
    end = page.offset + page.bytes;
  }
  return true;
}

/// The object, with only some pages of each chunk. A chunk appears as its dictionary, followed by these pages. Reads
/// behind them return nothing.
class PageFile final : public StoreFile {
 public:
  using StoreFile::StoreFile;

  Status Show(std::uint64_t chunk, object::ByteRange head, object::ByteRange pages) {
    auto shown = arrow::AllocateBuffer(static_cast<std::int64_t>(head.length + pages.length));
    if (!shown.ok()) return Fail(Code::kResourceExhausted, "no memory for {} of pages", FormatBytes(pages.length));
    std::uint8_t* into = (*shown)->mutable_data();
    for (object::ByteRange part : {head, pages}) {
      auto bytes = StoreFile::ReadAt(static_cast<std::int64_t>(part.offset), static_cast<std::int64_t>(part.length));
      if (!bytes.ok()) return Fail(error() ? *error() : ToError(bytes.status(), "pages"));
      into = std::copy_n((*bytes)->data(), (*bytes)->size(), into);
    }
    chunks_.push_back({chunk, *std::move(shown)});
    return {};
  }

  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(std::int64_t position, std::int64_t bytes) override {
    for (const Chunk& chunk : chunks_) {
      const std::int64_t from = position - static_cast<std::int64_t>(chunk.offset);
      if (from < 0 || from >= chunk.bytes->size()) continue;
      return arrow::SliceBuffer(chunk.bytes, from, std::min(bytes, chunk.bytes->size() - from));
    }
    return std::make_shared<arrow::Buffer>(nullptr, 0);
  }
  using StoreFile::ReadAt;

 private:
  struct Chunk {
    std::uint64_t offset = 0;
    std::shared_ptr<arrow::Buffer> bytes;
  };
  std::vector<Chunk> chunks_;
};

/// Returns `rows` rows of a leaf column, after the first `skip` rows of the file's pages. Their offsets begin at 0.
Result<std::shared_ptr<arrow::Array>> ReadLeaf(parquet::arrow::FileReader& reader, int leaf, std::uint64_t skip,
                                               std::uint64_t rows, arrow::MemoryPool* pool, std::string_view what) {
  const auto wanted = static_cast<std::int64_t>(skip + rows);
  reader.set_batch_size(wanted);
  auto batches = MR_ARROW_TRY(what, reader.GetRecordBatchReader({0}, {leaf}));
  arrow::ArrayVector chunks;
  std::int64_t have = 0;
  while (have < wanted) {
    std::shared_ptr<arrow::RecordBatch> batch;
    MR_ARROW_TRY(what, batches->ReadNext(&batch));
    if (!batch || batch->num_columns() != 1) break;
    have += batch->num_rows();
    chunks.push_back(batch->column(0));
  }
  if (have != wanted) return Fail(Code::kCorrupt, "{}: its pages do not hold the rows that they should", what);
  auto slice = arrow::ChunkedArray(std::move(chunks)).Slice(static_cast<std::int64_t>(skip));
  return MR_ARROW_TRY(what, arrow::Concatenate(slice->chunks(), pool));
}

bool SameOffsets(const arrow::ArrayData& a, const arrow::ArrayData& b, std::size_t width) {
  const auto bytes = static_cast<std::size_t>(a.length + 1) * width;
  const auto& of_a = a.buffers[1];
  const auto& of_b = b.buffers[1];
  if (!of_a || !of_b) return a.length == 0;
  return static_cast<std::size_t>(of_a->size()) >= bytes && static_cast<std::size_t>(of_b->size()) >= bytes &&
         std::memcmp(of_a->data(), of_b->data(), bytes) == 0;
}

/// Joins two arrays of one nested column that was read leaf by leaf. `data` and `more` are the same list or struct with
/// other leaves.
/// Errors: kCorrupt if lengths or offsets differ.
Result<std::shared_ptr<arrow::ArrayData>> Merge(const std::shared_ptr<arrow::ArrayData>& data,
                                                const std::shared_ptr<arrow::ArrayData>& more, std::string_view what) {
  auto differ = [&] { return Fail(Code::kCorrupt, "{}: the pages of a nested column do not go together", what); };
  const arrow::Type::type kind = data->type->id();
  if (kind != more->type->id() || data->length != more->length || data->offset != 0 || more->offset != 0) {
    return differ();
  }
  auto merged = data->Copy();
  const auto field = [](const arrow::ArrayData& of, std::size_t i) { return of.type->field(static_cast<int>(i)); };
  if (kind == arrow::Type::FIXED_SIZE_LIST) {
    merged->child_data[0] = MR_TRY(Merge(data->child_data[0], more->child_data[0], what));
    auto item = field(*data, 0)->WithType(merged->child_data[0]->type);
    merged->type = arrow::fixed_size_list(item, static_cast<const arrow::FixedSizeListType&>(*data->type).list_size());
    return merged;
  }
  if (kind == arrow::Type::LIST || kind == arrow::Type::LARGE_LIST) {
    if (!SameOffsets(*data, *more, kind == arrow::Type::LIST ? 4 : 8)) return differ();
    merged->child_data[0] = MR_TRY(Merge(data->child_data[0], more->child_data[0], what));
    auto item = field(*data, 0)->WithType(merged->child_data[0]->type);
    merged->type = kind == arrow::Type::LIST ? arrow::list(item) : arrow::large_list(item);
    return merged;
  }
  if (kind != arrow::Type::STRUCT || more->child_data.size() != 1 || data->child_data.empty()) return differ();
  arrow::FieldVector fields = data->type->fields();
  if (fields.back()->name() == field(*more, 0)->name()) {
    merged->child_data.back() = MR_TRY(Merge(data->child_data.back(), more->child_data[0], what));
    fields.back() = fields.back()->WithType(merged->child_data.back()->type);
  } else {
    merged->child_data.push_back(more->child_data[0]);
    fields.push_back(field(*more, 0));
  }
  merged->type = arrow::struct_(fields);
  return merged;
}

/// Returns `data` with the declared maps. Reading leaf by leaf makes a list of structs of each map.
std::shared_ptr<arrow::ArrayData> WithMaps(const std::shared_ptr<arrow::ArrayData>& data,
                                           const arrow::DataType& declared) {
  if (data->child_data.empty() || data->child_data.size() != static_cast<std::size_t>(declared.num_fields())) {
    return data;
  }
  auto made = data->Copy();
  arrow::FieldVector fields = data->type->fields();
  for (int i = 0; i < declared.num_fields(); ++i) {
    auto& child = made->child_data[static_cast<std::size_t>(i)];
    child = WithMaps(child, *declared.field(i)->type());
    fields[static_cast<std::size_t>(i)] = fields[static_cast<std::size_t>(i)]->WithType(child->type);
  }
  switch (data->type->id()) {
    case arrow::Type::STRUCT:
      made->type = arrow::struct_(fields);
      return made;
    case arrow::Type::FIXED_SIZE_LIST:
      made->type =
          arrow::fixed_size_list(fields[0], static_cast<const arrow::FixedSizeListType&>(*data->type).list_size());
      return made;
    case arrow::Type::LARGE_LIST:
      made->type = arrow::large_list(fields[0]);
      return made;
    case arrow::Type::LIST:
      break;
    default:
      return data;
  }
  const arrow::ArrayData& entries = *made->child_data[0];
  // Arrow's MapType must not have null keys, but damaged data can have some.
  const bool is_map = declared.id() == arrow::Type::MAP && entries.child_data.size() == 2 &&
                      entries.GetNullCount() == 0 && entries.child_data[0]->GetNullCount() == 0;
  made->type = arrow::list(fields[0]);
  if (is_map) made->type = std::make_shared<arrow::MapType>(fields[0]->WithNullable(false));
  return made;
}

/// Returns the pages that hold rows [first, end).
RowSlice::Pages PagesOf(const std::vector<PageAt>& pages, std::uint64_t chunk, std::uint64_t first, std::uint64_t end) {
  auto begin = std::ranges::upper_bound(pages, first, {}, &PageAt::first_row) - 1;
  while (!begin->starts_row) --begin;  // the first page does
  auto behind = std::ranges::lower_bound(pages, end, {}, &PageAt::first_row);
  const PageAt& last = *(behind - 1);
  return {.head = pages[0].offset - chunk,
          .offset = begin->offset,
          .bytes = last.offset + last.bytes - begin->offset,
          .first_row = begin->first_row};
}

}  // namespace

Result<object::ByteRange> ChunkRange(const parquet::FileMetaData& metadata, int group, int column,
                                     const DataObject& object) {
  auto chunk = metadata.RowGroup(group)->ColumnChunk(column);
  std::int64_t offset = chunk->data_page_offset(), length = chunk->total_compressed_size();
  if (chunk->has_dictionary_page() && chunk->dictionary_page_offset() > 0) {
    offset = std::min(offset, chunk->dictionary_page_offset());
  }
  const auto size = static_cast<std::int64_t>(object.info.size);
  if (offset < 0 || length < 0 || offset > size || length > size - offset || chunk->total_uncompressed_size() < 0) {
    return Fail(Code::kCorrupt, "{}: column \"{}\" of row group {} is beyond the object's end", object.url,
                chunk->path_in_schema()->ToDotString(), group);
  }
  return object::ByteRange{static_cast<std::uint64_t>(offset), static_cast<std::uint64_t>(length)};
}

Result<std::vector<PageAt>> LocatePages(const std::shared_ptr<StoreFile>& file,
                                        const std::shared_ptr<parquet::FileMetaData>& metadata, int group, int column,
                                        const DataObject& object, arrow::MemoryPool* pool) {
  const object::ByteRange chunk = MR_TRY(ChunkRange(*metadata, group, column, object));
  const auto rows = static_cast<std::uint64_t>(metadata->RowGroup(group)->num_rows());
  auto pages = FromOffsetIndex(file, metadata, group, column);
  if (!AreSound(pages, chunk, rows)) pages = ScanHeaders(file, *metadata, group, column, chunk, pool);
  if (!AreSound(pages, chunk, rows)) {
    return Fail(Code::kCorrupt, "{}: the pages of column \"{}\" in row group {} are not those of its rows", object.url,
                metadata->schema()->Column(column)->name(), group);
  }
  return pages;
}

std::string RowSlice::Encode() const {
  std::string state(8 + 8 * (kFixedWords + kPageWords * columns.size()), '\0');
  auto* at = reinterpret_cast<std::byte*>(state.data());
  StoreLittle(at, static_cast<std::int32_t>(group));
  at += 8;
  auto put = [&](std::uint64_t word) {
    StoreLittle(at, word);
    at += 8;
  };
  put(first_row);
  put(rows);
  for (const Pages& pages : columns) {
    for (std::uint64_t word : {pages.head, pages.offset, pages.bytes, pages.first_row}) put(word);
  }
  return state;
}

std::uint64_t RowSlice::bytes() const {
  std::uint64_t sum = 0;
  for (const Pages& pages : columns) sum += pages.head + pages.bytes;
  return sum;
}

bool RowSlice::IsOne(std::string_view state) {
  return state.size() > 8 && LoadLittle<std::int32_t>(AsBytes(state).data() + 4) == 0;
}

Result<RowSlice> RowSlice::Parse(std::string_view state, const parquet::FileMetaData& metadata,
                                 const std::vector<int>& columns, const DataObject& object) {
  auto wrong = [&] {
    return Fail(Code::kCorrupt, "{}: the index names rows that it lacks; delete the index", object.url);
  };
  if (state.size() != 8 + 8 * (kFixedWords + kPageWords * columns.size())) return wrong();
  const std::byte* at = AsBytes(state).data();
  RowSlice slice{.group = LoadLittle<std::int32_t>(at)};
  if (slice.group < 0 || slice.group >= metadata.num_row_groups()) return wrong();
  at += 8;
  auto next = [&] { return LoadLittle<std::uint64_t>(std::exchange(at, at + 8)); };
  slice.first_row = next();
  slice.rows = next();
  const auto all = static_cast<std::uint64_t>(metadata.RowGroup(slice.group)->num_rows());
  if (slice.rows == 0 || slice.rows > all || slice.first_row > all - slice.rows) return wrong();
  for (int column : columns) {
    Pages pages;
    for (std::uint64_t* word : {&pages.head, &pages.offset, &pages.bytes, &pages.first_row}) *word = next();
    const object::ByteRange chunk = MR_TRY(ChunkRange(metadata, slice.group, column, object));
    if (pages.first_row > slice.first_row || pages.bytes > chunk.length || pages.offset < chunk.offset ||
        pages.offset - chunk.offset > chunk.length - pages.bytes || pages.head > pages.offset - chunk.offset) {
      return wrong();
    }
    slice.columns.push_back(pages);
  }
  if (slice.bytes() > kMaxFrameContent) return wrong();
  return slice;
}

std::vector<RowSlice> CutRows(int group, std::uint64_t rows, const std::vector<std::vector<PageAt>>& pages,
                              const std::vector<object::ByteRange>& chunks, std::uint64_t content,
                              std::uint64_t target) {
  const auto largest = std::ranges::max_element(chunks, {}, &object::ByteRange::length) - chunks.begin();
  // Bytes of the largest column in a slice.
  const auto enough = static_cast<std::uint64_t>(static_cast<double>(chunks[largest].length) *
                                                 static_cast<double>(target) / static_cast<double>(content));
  std::vector<RowSlice> slices;
  std::uint64_t first = 0, bytes = 0;
  for (std::size_t i = 1; i <= pages[largest].size() && first < rows; ++i) {
    bytes += pages[largest][i - 1].bytes;
    const std::uint64_t end = i < pages[largest].size() ? pages[largest][i].first_row : rows;
    if (end == first || (end < rows && bytes < enough)) continue;
    bytes = 0;
    RowSlice slice{.group = group, .first_row = first, .rows = end - first};
    for (std::size_t c = 0; c < pages.size(); ++c) {
      slice.columns.push_back(PagesOf(pages[c], chunks[c].offset, first, end));
    }
    slices.push_back(std::move(slice));
    first = end;
  }
  return slices;
}

Result<std::shared_ptr<arrow::Table>> ReadSlice(const RowSlice& slice, const DataObject& object,
                                                const std::shared_ptr<parquet::FileMetaData>& metadata,
                                                const std::vector<int>& columns, arrow::MemoryPool* pool,
                                                std::string_view what, object::Call call) {
  auto file = std::make_shared<PageFile>(object, std::move(call));
  std::vector<object::ByteRange> ranges;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const object::ByteRange chunk = MR_TRY(ChunkRange(*metadata, slice.group, columns[i], object));
    ranges.push_back({chunk.offset, slice.columns[i].head});
    ranges.push_back({slice.columns[i].offset, slice.columns[i].bytes});
  }
  MR_TRY(file->Fetch(ranges));
  for (std::size_t i = 0; i < columns.size(); ++i) {
    MR_TRY(file->Show(ranges[2 * i].offset, ranges[2 * i], ranges[2 * i + 1]));
  }
  // A PageFile shows less than the whole chunk. The reader accepts that from a stream, not from a chunk read at once.
  parquet::ReaderProperties properties(pool);
  properties.enable_buffered_stream();
  properties.set_buffer_size(kStreamBytes);
  parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
  arrow_properties.set_pre_buffer(false);
  auto reader = MR_ARROW_TRY(
      what,
      parquet::arrow::FileReader::Make(
          pool, parquet::ParquetFileReader::Open(file, properties, metadata->Subset({slice.group})), arrow_properties));
  arrow::FieldVector fields;
  arrow::ArrayVector arrays;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const std::uint64_t skip = slice.first_row - slice.columns[i].first_row;
    auto values = MR_TRY(ReadLeaf(*reader, columns[i], skip, slice.rows, pool, what));
    const parquet::schema::Node* root = metadata->schema()->GetColumnRoot(columns[i]);
    // The leaves of one column follow each other.
    if (i > 0 && metadata->schema()->GetColumnRoot(columns[i - 1]) == root) {
      auto merged = MR_TRY(Merge(arrays.back()->data(), values->data(), what));
      fields.back() = arrow::field(root->name(), merged->type);
      arrays.back() = arrow::MakeArray(merged);
    } else {
      fields.push_back(arrow::field(root->name(), values->type()));
      arrays.push_back(std::move(values));
    }
  }
  std::shared_ptr<arrow::Schema> declared;
  MR_ARROW_TRY(what, reader->GetSchema(&declared));
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    auto field = declared->GetFieldByName(fields[i]->name());
    if (!field) continue;
    auto data = WithMaps(arrays[i]->data(), *field->type());
    fields[i] = fields[i]->WithType(data->type);
    arrays[i] = arrow::MakeArray(data);
  }
  return arrow::Table::Make(arrow::schema(std::move(fields)), arrays, static_cast<std::int64_t>(slice.rows));
}

}  // namespace millrace::data::arrow_format
