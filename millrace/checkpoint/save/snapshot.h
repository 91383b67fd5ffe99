// What one rank saves, copied out of the training's memory into the exact bytes of its file.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "millrace/base/threads/memory_budget.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/checkpoint/save/page_buffer.h"
#include "millrace/checkpoint/save/save_piece.h"

namespace millrace::checkpoint {

/// Holds one save's file: header and data in one piece of memory that is used again for the next. Not thread-safe.
class Snapshot {
 public:
  /// `budget` must outlive the snapshot.
  explicit Snapshot(MemoryBudget& budget);

  /// Makes room for a file of `bytes`. Blocks while the budget is taken by others.
  Status Reserve(std::uint64_t bytes);
  void Touch() { buffer_.Touch(); }
  /// Copies the pieces. kInvalidArgument when one does not fit its tensor. Where the file goes is worked out anew only
  /// when the pieces are not those of the time before.
  Status Take(const std::vector<SavePiece>& pieces);

  /// The file, empty when there were no pieces.
  ByteSpan file() const { return file_; }
  /// Tensors and slices of the file; their `file` is to be filled in.
  const Manifest& part() const { return layout_.part; }
  /// Another one whenever the pieces' names, places or sizes have changed; never 0.
  std::uint64_t layout_id() const { return layout_.id; }

 private:
  /// Where each of a list of pieces goes.
  struct Layout {
    std::uint64_t id = 0;
    std::vector<SavePiece> pieces;      ///< without their bytes
    std::vector<std::uint64_t> sizes;   ///< of each piece, in bytes
    std::vector<std::uint64_t> places;  ///< of each piece in the file
    std::string header;
    std::uint64_t file_size = 0;
    Manifest part;
    bool Fits(const std::vector<SavePiece>& others) const;
  };
  Status MakeLayout(const std::vector<SavePiece>& pieces);
  struct Copy {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };
  void Run(const std::vector<Copy>& copies);

  MemoryBudget& budget_;
  Reservation reservation_;
  PageBuffer buffer_;
  ByteSpan file_;
  Layout layout_;
  std::uint64_t next_id_ = 1;
  std::unique_ptr<ThreadPool> copiers_;  ///< beside the caller's thread; none on a machine with one core
  int threads_ = 1;
};

}  // namespace millrace::checkpoint
