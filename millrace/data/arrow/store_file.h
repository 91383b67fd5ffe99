// An object as a random-access file, for Arrow's readers.
#pragma once

#include <arrow/io/interfaces.h>
#include <arrow/result.h>

#include <optional>
#include <span>
#include <vector>

#include "millrace/data/records/content.h"

namespace millrace::data::arrow_format {

/// Serves reads within fetched ranges from memory. Every other read is one read of the store. One thread.
class StoreFile : public arrow::io::RandomAccessFile {
 public:
  /// `object` must outlive the file.
  StoreFile(const DataObject& object, object::Call call) : object_(object), call_(std::move(call)) {}

  /// Reads the ranges into memory. Joins ranges that are near each other into one read. Blocks.
  Status Fetch(std::vector<object::ByteRange> ranges);
  /// Returns the first error of a read, with its code. Arrow passes on only the text of an error.
  const std::optional<Error>& error() const { return error_; }

  arrow::Result<std::int64_t> ReadAt(std::int64_t position, std::int64_t bytes, void* into) override;
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(std::int64_t position, std::int64_t bytes) override;
  arrow::Result<std::int64_t> Read(std::int64_t bytes, void* into) override;
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(std::int64_t bytes) override;
  arrow::Result<std::int64_t> GetSize() override { return static_cast<std::int64_t>(object_.info.size); }
  arrow::Result<std::int64_t> Tell() const override { return position_; }
  arrow::Status Seek(std::int64_t position) override;
  arrow::Status Close() override;
  bool closed() const override { return closed_; }

 private:
  struct Fetched {
    std::uint64_t offset = 0;
    std::shared_ptr<arrow::Buffer> bytes;
  };
  arrow::Result<std::shared_ptr<arrow::Buffer>> Load(object::ByteRange range);
  /// Returns the part of the range in front of the object's end.
  arrow::Result<object::ByteRange> Clip(std::int64_t position, std::int64_t bytes) const;

  const DataObject& object_;
  const object::Call call_;
  std::vector<Fetched> fetched_;
  std::optional<Error> error_;
  std::int64_t position_ = 0;
  bool closed_ = false;
};

}  // namespace millrace::data::arrow_format
