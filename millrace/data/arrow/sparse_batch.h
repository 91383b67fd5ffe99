// Reads some rows of a record batch that is too large to be read as a whole.
#pragma once

#include <arrow/array/data.h>
#include <arrow/buffer.h>
#include <arrow/record_batch.h>
#include <arrow/util/compression.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "millrace/data/records/content.h"

namespace millrace::data::arrow_format {

/// A record batch in reserved addresses without memory behind them. Arrow lays out the columns there without reading
/// their bytes. Read() fetches the ranges that its rows need into these addresses, and only they take memory.
/// Compressed buffers are decompressed from their beginning to the end of a range, into addresses of their own. One
/// thread.
class SparseBatch {
 public:
  /// Opens the batch at `message` of `object`, which must outlive the result. `preamble` is the stream in front of the
  /// batch: schema and dictionaries. `columns` are the wanted columns. Returns null if the batch can only be read
  /// whole: its buffers are not aligned, or a wanted column has a type that CanBeCut() refuses. Blocks while it reads
  /// the message's header and the sizes of compressed buffers. Errors: kCorrupt if rows or sizes are impossible; else
  /// those of ReadRange.
  static Result<std::unique_ptr<SparseBatch>> Open(const DataObject& object, object::ByteRange message,
                                                   const arrow::Buffer& preamble, const std::vector<int>& columns,
                                                   object::Call call);
  ~SparseBatch();
  SparseBatch(const SparseBatch&) = delete;
  SparseBatch& operator=(const SparseBatch&) = delete;

  std::uint64_t rows() const { return static_cast<std::uint64_t>(batch_->num_rows()); }
  /// Returns the decompressed bytes of the wanted columns' buffers.
  std::uint64_t bytes() const { return bytes_; }
  bool compressed() const { return codec_ != arrow::Compression::UNCOMPRESSED; }

  /// Returns a copy of some rows. String views still point into this object. Blocks.
  /// Errors: kCorrupt if the batch is damaged; kUnsupported if all rows read so far exceed kMaxFrameContent.
  Result<std::shared_ptr<arrow::RecordBatch>> Read(std::uint64_t first, std::uint64_t rows, arrow::MemoryPool* pool,
                                                   const object::Call& call);

 private:
  /// Reserved addresses. Memory is taken when they are written.
  struct Mapping {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  /// A buffer of a compressed batch.
  struct CompressedBuffer {
    object::ByteRange at;         ///< in the object, behind the u64 size that is in front of each buffer
    bool compressed = true;       ///< false: the writer stored this buffer uncompressed
    std::uint64_t bytes = 0;      ///< decompressed
    std::byte* target = nullptr;  ///< where the decompressed bytes go
  };

  SparseBatch(const DataObject& object, object::ByteRange message) : object_(object), message_(message) {}
  Result<Mapping> MapAddresses(std::size_t bytes) const;
  Status Map(const arrow::Buffer& preamble, const object::Call& call);
  bool LayOut(const std::vector<int>& columns);
  Status CheckRows() const;
  bool CheckBuffers(const arrow::ArrayData& data);
  Status MapDecompressed(const object::Call& call);
  Status FindCompressed(const arrow::ArrayData& data, const object::Call& call);
  std::shared_ptr<arrow::ArrayData> WithTargets(const arrow::ArrayData& data, std::size_t& next) const;
  Status Decompress(const std::byte* buffer, std::uint64_t from, std::uint64_t bytes, const object::Call& call);
  Status FetchRows(const arrow::ArrayData& data, std::int64_t first, std::int64_t rows, const object::Call& call);
  Status FetchViews(const arrow::ArrayData& data, std::int64_t at, std::int64_t rows, const object::Call& call);
  template <class Offset>
  Status FetchOffsets(const arrow::ArrayData& data, std::int64_t at, std::int64_t rows, const object::Call& call);
  /// Fetches `count` elements of `width` bytes. Checks the range, which may come from damaged bytes.
  Status Fetch(const std::shared_ptr<arrow::Buffer>& buffer, std::int64_t first, std::int64_t count, std::int64_t width,
               const object::Call& call);
  std::unexpected<Error> Damaged() const;

  const DataObject& object_;
  const object::ByteRange message_;
  Mapping stream_;            ///< preamble and message
  Mapping decompressed_;      ///< the targets of compressed_
  std::size_t batch_at_ = 0;  ///< offset of the message in stream_
  arrow::Compression::type codec_ = arrow::Compression::UNCOMPRESSED;
  std::vector<CompressedBuffer> compressed_;  ///< ordered by target
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::uint64_t bytes_ = 0, fetched_ = 0;
};

}  // namespace millrace::data::arrow_format
