// Reads some rows of a large row group. Fetches and decodes only the pages that hold these rows.
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
#include "millrace/data/records/content.h"

namespace millrace::data::arrow_format {

/// A data page of a column chunk. Its bytes include the header; `first_row` is the row of its first value.
struct PageAt {
  std::uint64_t offset = 0, bytes = 0, first_row = 0;
  bool starts_row = true;  ///< false: the list of `first_row` began on the page before
};

/// Returns the range of a column chunk and its dictionary. Errors: kCorrupt if it ends beyond the object's end.
Result<object::ByteRange> ChunkRange(const parquet::FileMetaData& metadata, int group, int column,
                                     const DataObject& object);

/// Returns the data pages of a column in order. Reads the offset index if the file has one, else the pages' headers,
/// one small read each. Headers of version 1 do not have the rows of lists. Then the whole chunk is read and
/// decompressed, a page at a time. Blocks. Throws the exceptions of Parquet's reader.
Result<std::vector<PageAt>> LocatePages(const std::shared_ptr<StoreFile>& file,
                                        const std::shared_ptr<parquet::FileMetaData>& metadata, int group, int column,
                                        const DataObject& object, arrow::MemoryPool* pool);

/// Consecutive rows, and the pages that hold them, for each wanted column.
struct RowSlice {
  struct Pages {
    std::uint64_t head = 0;  ///< bytes of the chunk in front of its first data page: the dictionary
    std::uint64_t offset = 0, bytes = 0, first_row = 0;  ///< of the pages, which follow each other
  };
  int group = 0;
  std::uint64_t first_row = 0, rows = 0;
  std::vector<Pages> columns;

  /// Returns the bytes of the object that ReadSlice reads.
  std::uint64_t bytes() const;
  /// Returns the state of the slice's frame (README.md).
  std::string Encode() const;
  /// Makes the state of a slice from the state of whole row groups, which has their number in place of the i32 0.
  static bool IsOne(std::string_view state);
  /// Errors: kCorrupt if a page is outside its chunk, or all pages exceed kMaxFrameContent.
  static Result<RowSlice> Parse(std::string_view state, const parquet::FileMetaData& metadata,
                                const std::vector<int>& columns, const DataObject& object);
};

/// Cuts a row group into slices between pages of its largest column. `content` is the row group's decompressed size. A
/// slice decompresses to about `target` bytes.
std::vector<RowSlice> CutRows(int group, std::uint64_t rows, const std::vector<std::vector<PageAt>>& pages,
                              const std::vector<object::ByteRange>& chunks, std::uint64_t content,
                              std::uint64_t target);

/// Reads the pages of a slice and decodes its rows. Blocks. Throws the exceptions of Parquet's reader.
Result<std::shared_ptr<arrow::Table>> ReadSlice(const RowSlice& slice, const DataObject& object,
                                                const std::shared_ptr<parquet::FileMetaData>& metadata,
                                                const std::vector<int>& columns, arrow::MemoryPool* pool,
                                                std::string_view what, object::Call call);

}  // namespace millrace::data::arrow_format
