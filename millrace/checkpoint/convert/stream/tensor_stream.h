// Tensors of a checkpoint as a stream of bytes, in bounded memory.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/checkpoint/read/reader.h"

namespace millrace::checkpoint {

using ByteSink = std::function<Status(ByteSpan)>;

/// One thread. Has one of its own that reads what is announced, many tensors at a time, while the caller is busy with
/// what came before.
class TensorStream {
 public:
  /// Reserves a quarter of the budget, 64 MiB at most, for reading; what is written shares the rest.
  static Result<std::unique_ptr<TensorStream>> Open(Reader& reader, MemoryBudget& budget, object::Call call,
                                                    ByteProgress progress);
  /// The calls of Stream that follow are for these tensors, in this order. Once, and from then on for no others.
  void Announce(const std::vector<std::string>& tensors);
  /// All bytes of a tensor in C order.
  Status Stream(const std::string& tensor, const ByteSink& sink);
  Reader& reader() const { return reader_; }
  const object::Call& call() const { return call_; }

 private:
  /// Bytes of one tensor in a batch.
  struct StreamPiece {
    std::string tensor;
    std::uint64_t begin = 0, bytes = 0;  ///< first element
    bool last = false;                   ///< of its tensor
  };
  using Batch = std::vector<StreamPiece>;  ///< that fits half of the window
  struct Fetched {
    MutableByteSpan half;
    Status status;
  };

  TensorStream(Reader& reader, Reservation reserved, object::Call call, ByteProgress progress);
  void AddToBatches(const std::string& tensor, std::uint64_t& room);
  Status Fetch(const Batch& batch, MutableByteSpan half) const;
  Status StreamAnnounced(const ByteSink& sink);
  Status Deliver(ByteSpan bytes, const ByteSink& sink) const;

  Reader& reader_;
  const Reservation reserved_;
  Buffer window_;
  const object::Call call_;
  const ByteProgress progress_;
  std::vector<Batch> batches_;
  Channel<MutableByteSpan> free_{2};
  Channel<Fetched> fetched_{1};
  // The next piece that was announced; nothing of its batch is there as long as current_ is empty.
  std::size_t batch_ = 0, piece_ = 0;
  std::optional<MutableByteSpan> current_;
  std::uint64_t offset_ = 0;  ///< of the piece, in current_
  TaskScope reading_;         ///< last: it uses what is above
};

}  // namespace millrace::checkpoint
