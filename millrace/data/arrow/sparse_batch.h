// Rows of a record batch that is too large to be read as a whole.
#pragma once

#include <arrow/array/data.h>
#include <arrow/buffer.h>
#include <arrow/record_batch.h>
#include <arrow/util/compression.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "millrace/data/content/content.h"

namespace millrace::data::arrow_format {

/// A record batch in addresses that hold nothing: Arrow lays its columns out there without looking at a byte, and then
/// only the ranges that some rows need are fetched to where they belong. Memory is taken for these alone. Compressed
/// buffers have addresses of their own, and are read from their beginning up to the end of such a range. One thread.
class SparseBatch {
 public:
  /// `message`: where the batch is in `object`, which must outlive this. `preamble`: the stream up to the batch, schema
  /// and dictionaries. `columns`: those that are wanted. Null when the batch cannot be read so: its buffers are not
  /// aligned, or a wanted column is of a type that cannot be cut. Blocks for the message's header and, of compressed
  /// buffers, their sizes. Fails with kCorrupt where what it says of its rows and bytes cannot be, else as ReadRange.
  static Result<std::unique_ptr<SparseBatch>> Open(const DataObject& object, object::ByteRange message,
                                                   const arrow::Buffer& preamble, const std::vector<int>& columns,
                                                   object::Call call);
  ~SparseBatch();
  SparseBatch(const SparseBatch&) = delete;
  SparseBatch& operator=(const SparseBatch&) = delete;

  std::uint64_t rows() const { return static_cast<std::uint64_t>(batch_->num_rows()); }
  /// Of all buffers of the wanted columns, not compressed.
  std::uint64_t bytes() const { return bytes_; }
  bool compressed() const { return codec_ != arrow::Compression::UNCOMPRESSED; }

  /// Some rows, on their own; strings that are views stay here. Fails with kCorrupt where the batch is damaged, with
  /// kUnsupported if the rows take more than kMaxFrameContent. Blocks.
  Result<std::shared_ptr<arrow::RecordBatch>> Read(std::uint64_t first, std::uint64_t rows, arrow::MemoryPool* pool,
                                                   const object::Call& call);

 private:
  /// Addresses that hold nothing.
  struct Mapping {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  /// A buffer of a compressed batch.
  struct Packed {
    object::ByteRange at;        ///< in the object, without its size
    bool compressed = true;      ///< else its bytes are as they are
    std::uint64_t bytes = 0;     ///< of what it stands for
    std::byte* place = nullptr;  ///< of that
  };

  SparseBatch(const DataObject& object, object::ByteRange message) : object_(object), message_(message) {}
  Result<Mapping> MapAddresses(std::size_t bytes) const;
  Status Map(const arrow::Buffer& preamble, const object::Call& call);
  bool LayOut(const std::vector<int>& columns);
  Status CheckRows() const;
  bool CheckPlaces(const arrow::ArrayData& data);
  Status Unpack(const object::Call& call);
  Status FindPacked(const arrow::ArrayData& data, const object::Call& call);
  std::shared_ptr<arrow::ArrayData> Unpacked(const arrow::ArrayData& data, std::size_t& next) const;
  Status FetchPacked(const std::byte* buffer, std::uint64_t from, std::uint64_t bytes, const object::Call& call);
  Status Want(const arrow::ArrayData& data, std::int64_t first, std::int64_t rows, const object::Call& call);
  Status WantViews(const arrow::ArrayData& data, std::int64_t at, std::int64_t rows, const object::Call& call);
  template <class Offset>
  Status WantOffsets(const arrow::ArrayData& data, std::int64_t at, std::int64_t rows, const object::Call& call);
  /// `count` elements of `width` bytes, of which the batch may say anything.
  Status Fetch(const std::shared_ptr<arrow::Buffer>& buffer, std::int64_t first, std::int64_t count, std::int64_t width,
               const object::Call& call);
  std::unexpected<Error> Damaged() const;

  const DataObject& object_;
  const object::ByteRange message_;
  Mapping stream_, unpacked_;  ///< preamble and message; what compressed buffers stand for
  std::size_t batch_at_ = 0;   ///< where the message begins in the former
  arrow::Compression::type codec_ = arrow::Compression::UNCOMPRESSED;
  std::vector<Packed> packed_;  ///< in the order of their places
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::uint64_t bytes_ = 0, fetched_ = 0;
};

}  // namespace millrace::data::arrow_format
