// A copy of one rank's slices in memory, laid out as the rank's file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/save/save_slice.h"

namespace millrace::checkpoint {

/// Memory from mmap, in huge pages if the system grants them. Not thread-safe.
class PageBuffer {
 public:
  PageBuffer() = default;
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;
  ~PageBuffer() { Free(); }
  /// Makes the buffer at least `size` bytes long. If it has to grow, its content is lost.
  /// Errors: kResourceExhausted if the system has no memory.
  Status Grow(std::uint64_t size);
  void Free();
  /// Writes to every page, so that later writes do not wait for page faults.
  void Touch();
  MutableByteSpan span() { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// The file of one save: header and data in one buffer, which later saves use again. Not thread-safe.
class Snapshot {
 public:
  /// `budget` must outlive the snapshot.
  explicit Snapshot(MemoryBudget& budget);

  /// Reserves and allocates memory for a file of `bytes`. Blocks while others hold the budget.
  /// Errors: kResourceExhausted if the file is larger than the budget or the system's memory.
  Status Reserve(std::uint64_t bytes);
  /// Writes to every page of the buffer.
  void Touch() { buffer_.Touch(); }
  /// Copies the slices, with `read` if it is there. Plans the file's layout only if the slices differ from those of the
  /// last call. Errors: kInvalidArgument if a slice does not fit its tensor; those of Reserve and of `read`.
  Status Take(const std::vector<SaveSlice>& slices, const SliceReader& read = {});

  /// The file; empty if there were no slices.
  ByteSpan file() const { return file_; }
  /// Tensors and slices of the file. The slices' `file` is empty; the saver sets it.
  const Manifest& part() const { return layout_.part; }
  /// A number that changes when the slices' names, boxes or sizes change; never 0.
  std::uint64_t layout_id() const { return layout_.id; }

 private:
  /// The place of each slice in the file.
  struct FileLayout {
    std::uint64_t id = 0;
    std::vector<SaveSlice> slices;       ///< without their bytes
    std::vector<std::uint64_t> sizes;    ///< of each slice, in bytes
    std::vector<std::uint64_t> offsets;  ///< of each slice in the file
    std::string header;
    std::uint64_t file_size = 0;
    Manifest part;
    bool Fits(const std::vector<SaveSlice>& others) const;
  };
  Status MakeFileLayout(const std::vector<SaveSlice>& slices);
  struct CopyStep {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };
  Status RunCopies(const std::vector<CopyStep>& copies, const SliceReader& read);

  MemoryBudget& budget_;
  Reservation reservation_;
  PageBuffer buffer_;
  ByteSpan file_;
  FileLayout layout_;
  std::uint64_t next_id_ = 1;
  std::unique_ptr<ThreadPool> copiers_;  ///< beside the caller's thread; none on a machine with one core
  int threads_ = 1;
};

}  // namespace millrace::checkpoint
