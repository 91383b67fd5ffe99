// Bytes that lie somewhere and can be read from any place: an object of a store, or a part of one.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/object/store.h"

namespace millrace::checkpoint {

/// One thread at a time.
class RandomBytes {
 public:
  virtual ~RandomBytes() = default;
  virtual std::uint64_t size() const = 0;
  virtual const std::string& name() const = 0;  ///< for messages
  /// Fills `into`, which lies inside. Blocks.
  virtual Status ReadAt(std::uint64_t offset, MutableByteSpan into) = 0;
};

/// Memory of the caller's, which must outlive this.
class MemoryBytes final : public RandomBytes {
 public:
  MemoryBytes(ByteSpan bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}
  std::uint64_t size() const override { return bytes_.size(); }
  const std::string& name() const override { return name_; }
  Status ReadAt(std::uint64_t offset, MutableByteSpan into) override {
    std::memcpy(into.data(), bytes_.data() + offset, into.size());
    return {};
  }

 private:
  const ByteSpan bytes_;
  const std::string name_;
};

/// Bytes [begin, begin + size) of one version of an object. Small reads take a window of the object with them, of which
/// the last two are kept: the head and the tail of a container come with a request each.
class ObjectBytes final : public RandomBytes {
 public:
  /// The part lies inside the object that `info` describes. The store must outlive this.
  ObjectBytes(object::Store& store, object::ObjectInfo info, std::uint64_t begin, std::uint64_t size,
              object::Call call);
  std::uint64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }
  Status ReadAt(std::uint64_t offset, MutableByteSpan into) override;

 private:
  struct Window {
    std::uint64_t begin = 0;
    Buffer bytes;
  };
  Status Fetch(std::uint64_t offset, MutableByteSpan into);

  object::Store& store_;
  const object::ObjectInfo info_;
  const std::uint64_t begin_, size_;
  const object::Call call_;
  const std::string name_;
  std::array<Window, 2> windows_;
  std::size_t oldest_ = 0;
};

}  // namespace millrace::checkpoint
