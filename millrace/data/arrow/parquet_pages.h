// Rows of a row group that is too large to be read as a whole, by the pages that hold them.
#pragma once

#include <arrow/memory_pool.h>
#include <arrow/table.h>
#include <parquet/metadata.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/data/arrow/store_file.h"
#include "millrace/data/content/content.h"

namespace millrace::data::arrow_format {

/// Of a column chunk: where a page is, header included, and the row of its first value.
struct PageAt {
  std::uint64_t offset = 0, bytes = 0, first_row = 0;
  bool starts_row = true;  ///< false: that row's list began on the page before
};

/// Where a column chunk lies, its dictionary included. Fails with kCorrupt if that is beyond the object's end.
Result<object::ByteRange> ChunkRange(const parquet::FileMetaData& metadata, int group, int column,
                                     const DataObject& object);

/// The data pages of a column, in order: as the offset index says where the writer left one, else from the pages'
/// headers, which takes a small read for each; where these do not tell the rows (lists on pages of version 1) all of
/// the chunk is read and decompressed, a page at a time. Blocks; throws what Parquet's reader throws.
Result<std::vector<PageAt>> LocatePages(const std::shared_ptr<StoreFile>& file,
                                        const std::shared_ptr<parquet::FileMetaData>& metadata, int group, int column,
                                        const DataObject& object, arrow::MemoryPool* pool);

/// Consecutive rows, and for each of the wanted columns the pages that hold them.
struct RowSlice {
  struct Pages {
    std::uint64_t head = 0;                              ///< bytes in front of the chunk's first page: its dictionary
    std::uint64_t offset = 0, bytes = 0, first_row = 0;  ///< of the pages, which follow each other
  };
  int group = 0;
  std::uint64_t first_row = 0, rows = 0;
  std::vector<Pages> columns;

  std::uint64_t bytes() const;  ///< that are read
  /// Little-endian: i32 group, i32 0 (other frames have their number of row groups there), then u64s.
  std::string Encode() const;
  static bool IsOne(std::string_view state);
  /// Fails with kCorrupt unless all of it lies in the row group's chunks and is within kMaxFrameContent.
  static Result<RowSlice> Parse(std::string_view state, const parquet::FileMetaData& metadata,
                                const std::vector<int>& columns, const DataObject& object);
};

/// Cuts a row group of `content` bytes once decoded between pages of its largest column, so that about `target` of them
/// are in a slice.
std::vector<RowSlice> CutRows(int group, std::uint64_t rows, const std::vector<std::vector<PageAt>>& pages,
                              const std::vector<object::ByteRange>& chunks, std::uint64_t content,
                              std::uint64_t target);

/// Reads the pages of a slice and decodes them alone. Blocks; throws what Parquet's reader throws.
Result<std::shared_ptr<arrow::Table>> ReadSlice(const RowSlice& slice, const DataObject& object,
                                                const std::shared_ptr<parquet::FileMetaData>& metadata,
                                                const std::vector<int>& columns, arrow::MemoryPool* pool,
                                                std::string_view what, object::Call call);

}  // namespace millrace::data::arrow_format
