// Rows of a record batch that is too large to be read as a whole.
#pragma once

#include <arrow/array/data.h>
#include <arrow/buffer.h>
#include <arrow/record_batch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "millrace/data/content.h"

namespace millrace::data::arrow_format {

/// A record batch in addresses that hold nothing: Arrow lays its columns out there without looking at a byte, and then
/// only the ranges that some rows need are fetched to where they belong. Memory is taken for these alone. One thread.
class SparseBatch {
 public:
  /// `message`: where the batch is in `object`, which must outlive this. `preamble`: the stream up to the batch, schema
  /// and dictionaries. `columns`: those that are wanted. Null when the batch cannot be read so: it is compressed, or
  /// its buffers are not aligned. Blocks for the message's header; errors as ReadRange's.
  static Result<std::unique_ptr<SparseBatch>> Open(const DataObject& object, object::ByteRange message,
                                                   const arrow::Buffer& preamble, const std::vector<int>& columns,
                                                   object::Call call);
  ~SparseBatch();
  SparseBatch(const SparseBatch&) = delete;
  SparseBatch& operator=(const SparseBatch&) = delete;

  std::uint64_t rows() const { return static_cast<std::uint64_t>(batch_->num_rows()); }
  /// Of all buffers of the wanted columns.
  std::uint64_t bytes() const { return bytes_; }

  /// Some rows, on their own. Fails with kCorrupt where the batch is damaged, with kUnsupported if the rows take more
  /// than kMaxFrameContent or a type cannot be cut. Blocks.
  Result<std::shared_ptr<arrow::RecordBatch>> Read(std::uint64_t first, std::uint64_t rows, arrow::MemoryPool* pool,
                                                   const object::Call& call);

 private:
  SparseBatch(const DataObject& object, object::ByteRange message) : object_(object), message_(message) {}
  Status Map(const arrow::Buffer& preamble, const object::Call& call);
  bool LayOut(const std::vector<int>& columns);
  bool Count(const arrow::ArrayData& data);
  Status Want(const arrow::ArrayData& data, std::int64_t first, std::int64_t rows, const object::Call& call);
  template <class Offset>
  Status WantOffsets(const arrow::ArrayData& data, std::int64_t at, std::int64_t rows, const object::Call& call);
  /// `count` elements of `width` bytes, of which the batch may say anything.
  Status Fetch(const std::shared_ptr<arrow::Buffer>& buffer, std::int64_t first, std::int64_t count, std::int64_t width,
               const object::Call& call);
  std::unexpected<Error> Damaged() const;

  const DataObject& object_;
  const object::ByteRange message_;
  std::byte* memory_ = nullptr;
  std::size_t mapped_ = 0, batch_at_ = 0;  ///< bytes; where the batch begins in them
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::uint64_t bytes_ = 0, fetched_ = 0;
};

}  // namespace millrace::data::arrow_format
