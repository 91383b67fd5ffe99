// Random access to the bytes of an object or of a part of it. Small reads are merged and cached, since each request to
// a store costs milliseconds.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/object/read_store.h"

namespace millrace::checkpoint {

/// A byte sequence that can be read at any offset. One thread at a time.
class RandomBytes {
 public:
  virtual ~RandomBytes() = default;
  virtual std::uint64_t size() const = 0;
  virtual const std::string& name() const = 0;  ///< for messages
  /// Fills `into` with the bytes from `offset` on. Blocks.
  /// REQUIRES: offset + into.size() <= size().
  /// Errors: kStale if the object changed.
  virtual Status ReadAt(std::uint64_t offset, MutableByteSpan into) = 0;
  /// Prefetches ranges that the caller reads next. Drops what an earlier call prefetched. Blocks.
  /// REQUIRES: at most kPrefetch small ranges.
  virtual Status WillRead(const std::vector<object::ByteRange>& ranges) = 0;
};

/// Prefetched small ranges of objects, in memory. Immutable.
class Prefetched {
 public:
  struct ObjectRange {
    const object::ObjectInfo* object = nullptr;  ///< must outlive the Prefetched
    std::uint64_t begin = 0, size = 0;           ///< inside the object
  };
  /// Reads the ranges. Merges near ranges into one request, and keeps up to 32 requests in flight. Takes memory for
  /// the ranges and for gaps of up to 32 KiB between them. Blocks.
  /// Errors: kStale if an object changed.
  static Result<Prefetched> Get(object::ReadStore& store, std::vector<ObjectRange> ranges, const object::Call& call);
  /// Fills `into` and returns true if all of its bytes were prefetched. Otherwise leaves `into` as it is.
  bool Copy(std::string_view key, std::uint64_t offset, MutableByteSpan into) const;

 private:
  /// By key and offset. The buffers do not overlap.
  std::map<std::pair<std::string_view, std::uint64_t>, Buffer> got_;
};
/// The most ranges of one Prefetched. 1,024 ranges of up to 16 KiB, with gaps of up to 32 KiB, take less than 64 MiB.
inline constexpr std::size_t kPrefetch = 1024;

/// Memory that the caller owns. The memory must outlive this object.
class MemoryBytes final : public RandomBytes {
 public:
  MemoryBytes(ByteSpan bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}
  std::uint64_t size() const override { return bytes_.size(); }
  const std::string& name() const override { return name_; }
  Status ReadAt(std::uint64_t offset, MutableByteSpan into) override {
    std::memcpy(into.data(), bytes_.data() + offset, into.size());
    return {};
  }
  Status WillRead(const std::vector<object::ByteRange>&) override { return {}; }

 private:
  const ByteSpan bytes_;
  const std::string name_;
};

/// Bytes [begin, begin + size) of one version of an object. A small read fetches a window of 4 KiB. The last two
/// windows are cached, so reading the head and the tail of an archive takes one request each.
class ObjectBytes final : public RandomBytes {
 public:
  /// Bytes in `prefetched` are not requested again. The store must outlive this object.
  /// REQUIRES: the range lies inside the object that `info` describes.
  ObjectBytes(object::ReadStore& store, object::ObjectInfo info, std::uint64_t begin, std::uint64_t size,
              object::Call call, std::shared_ptr<const Prefetched> prefetched = nullptr);
  std::uint64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }
  Status ReadAt(std::uint64_t offset, MutableByteSpan into) override;
  Status WillRead(const std::vector<object::ByteRange>& ranges) override;

 private:
  struct Window {
    std::uint64_t begin = 0;
    Buffer bytes;
  };
  Status Fetch(std::uint64_t offset, MutableByteSpan into);

  object::ReadStore& store_;
  const object::ObjectInfo info_;
  const std::uint64_t begin_, size_;
  const object::Call call_;
  const std::string name_;
  std::shared_ptr<const Prefetched> prefetched_;
  std::array<Window, 2> windows_;
  std::size_t oldest_ = 0;  ///< the window that the next small read replaces
};

}  // namespace millrace::checkpoint
