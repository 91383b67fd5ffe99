// Bytes that lie somewhere and can be read from any place: an object of a store, or a part of one.
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
  /// Announces what will be read next, in place of what was announced before: as many ranges as kPrefetch, and small
  /// ones. Blocks where that saves requests.
  virtual Status WillRead(const std::vector<object::ByteRange>& ranges) = 0;
};

/// Small parts of objects, got beforehand: near ones in one request, and many requests at a time. Immutable.
class Prefetched {
 public:
  struct Part {
    const object::ObjectInfo* object = nullptr;  ///< must outlive the Prefetched
    std::uint64_t begin = 0, size = 0;           ///< inside the object
  };
  /// Memory: all parts, and up to 32 KiB between any two. kStale where an object has changed. Blocks.
  static Result<Prefetched> Get(object::Store& store, std::vector<Part> parts, const object::Call& call);
  /// False, and `into` as it was, where not all of it is there.
  bool Copy(std::string_view key, std::uint64_t offset, MutableByteSpan into) const;

 private:
  std::map<std::pair<std::string_view, std::uint64_t>, Buffer> got_;  ///< by key and offset; they do not overlap
};
/// So many parts at a time keep their memory below 64 MiB, and the requests in flight busy.
inline constexpr std::size_t kPrefetch = 1024;

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
  Status WillRead(const std::vector<object::ByteRange>&) override { return {}; }

 private:
  const ByteSpan bytes_;
  const std::string name_;
};

/// Bytes [begin, begin + size) of one version of an object. Small reads take a window of the object with them, of which
/// the last two are kept: the head and the tail of a container come with a request each.
class ObjectBytes final : public RandomBytes {
 public:
  /// The part lies inside the object that `info` describes. The store must outlive this. What `prefetched` has is not
  /// asked for again.
  ObjectBytes(object::Store& store, object::ObjectInfo info, std::uint64_t begin, std::uint64_t size, object::Call call,
              std::shared_ptr<const Prefetched> prefetched = nullptr);
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

  object::Store& store_;
  const object::ObjectInfo info_;
  const std::uint64_t begin_, size_;
  const object::Call call_;
  const std::string name_;
  std::shared_ptr<const Prefetched> prefetched_;
  std::array<Window, 2> windows_;
  std::size_t oldest_ = 0;
};

}  // namespace millrace::checkpoint
