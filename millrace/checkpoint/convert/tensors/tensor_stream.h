// Reads the tensors of a checkpoint as a stream of bytes, in bounded memory. A background thread reads ahead.
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
/// Changes elements `first` … of a tensor in place.
using TensorChange = std::function<void(const std::string& tensor, std::uint64_t first, MutableByteSpan elements)>;

/// Streams tensors one after the other. A background thread prefetches announced tensors in batches of half the window.
/// One caller thread. The reader and the budget must outlive the stream.
class TensorStream {
 public:
  /// Reserves a quarter of the budget, from 1 MiB to 64 MiB, as the read window. The export's writes use the rest.
  /// `change`, if it is not empty, is called with all elements before a sink gets them.
  static Result<std::unique_ptr<TensorStream>> Open(Reader& reader, MemoryBudget& budget, object::Call call,
                                                    ByteProgress progress, TensorChange change = {});
  /// Starts to prefetch these tensors. May be called once. From then on, Stream must be called for exactly these
  /// tensors, in this order.
  void Announce(const std::vector<std::string>& tensors);
  /// Passes all bytes of the tensor to `sink`, in C order. Blocks. Before Announce, reads without prefetching.
  /// Errors: those of Reader::ReadMany and of `sink`.
  Status Stream(const std::string& tensor, const ByteSink& sink);
  Reader& reader() const { return reader_; }
  const object::Call& call() const { return call_; }

 private:
  /// A run of elements of one tensor in a batch.
  struct BatchSlice {
    std::string tensor;
    std::uint64_t begin = 0;  ///< the first element
    std::uint64_t bytes = 0;
    bool is_last = false;  ///< whether the run ends its tensor
  };
  using Batch = std::vector<BatchSlice>;  ///< fits half of the window
  /// A batch that was read, in one half of the window.
  struct FetchedBatch {
    MutableByteSpan half;
    Status status;
  };

  TensorStream(Reader& reader, Reservation reserved, object::Call call, ByteProgress progress, TensorChange change);
  void AddToBatches(const std::string& tensor, std::uint64_t& room);
  Status Fetch(const Batch& batch, MutableByteSpan half) const;
  Status StreamAnnounced(const ByteSink& sink);
  Status Deliver(const std::string& tensor, std::uint64_t first, MutableByteSpan bytes, const ByteSink& sink) const;

  Reader& reader_;
  const Reservation reserved_;
  Buffer window_;
  const object::Call call_;
  const ByteProgress progress_;
  const TensorChange change_;  ///< may be empty
  std::vector<Batch> batches_;
  // The window has two halves. The background thread fills one while the caller empties the other.
  Channel<MutableByteSpan> free_{2};
  Channel<FetchedBatch> fetched_{1};
  // The next slice to deliver, as an index into batches_ and into that batch.
  std::size_t batch_ = 0, slice_ = 0;
  std::optional<MutableByteSpan> current_;  ///< the bytes of batches_[batch_]; empty until the batch is fetched
  std::uint64_t offset_ = 0;                ///< of the next slice, in current_
  TaskScope reading_;                       ///< last: its thread uses the members above
};

}  // namespace millrace::checkpoint
