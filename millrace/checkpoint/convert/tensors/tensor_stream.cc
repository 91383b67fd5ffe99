#include "millrace/checkpoint/convert/tensors/tensor_stream.h"

#include <algorithm>
#include <utility>

#include "millrace/checkpoint/format/manifest.h"

namespace millrace::checkpoint {
namespace {

/// The window: one half is read while the other is written. A guess: each half takes several requests.
constexpr std::uint64_t kWindow = 64 * kMiB, kLeastWindow = 1 * kMiB;
/// Requests in flight: the default of Reader::ReadMany.
constexpr int kReads = 8;

}  // namespace

Result<std::unique_ptr<TensorStream>> TensorStream::Open(Reader& reader, MemoryBudget& budget, object::Call call,
                                                         ByteProgress progress, TensorChange change) {
  Reservation reserved = MR_TRY(budget.Acquire(std::clamp(budget.total() / 4, kLeastWindow, kWindow), call.stop));
  return std::unique_ptr<TensorStream>(
      new TensorStream(reader, std::move(reserved), std::move(call), std::move(progress), std::move(change)));
}

TensorStream::TensorStream(Reader& reader, Reservation reserved, object::Call call, ByteProgress progress,
                           TensorChange change)
    : reader_(reader),
      reserved_(std::move(reserved)),
      window_(reserved_.bytes()),
      call_(std::move(call)),
      progress_(std::move(progress)),
      change_(std::move(change)) {}

void TensorStream::Announce(const std::vector<std::string>& tensors) {
  const std::uint64_t half = window_.size() / 2;
  std::uint64_t room = 0;
  for (const std::string& tensor : tensors) AddToBatches(tensor, room);
  for (const std::uint64_t begin : {std::uint64_t{0}, half}) free_.Push(window_.span().subspan(begin, half));
  reading_.Spawn("ckpt-export", [this](std::stop_token stop) {
    for (const Batch& batch : batches_) {
      const auto into = free_.Pop(stop);
      if (!into) return;
      Status status = Fetch(batch, *into);
      const bool failed = !status;
      if (!fetched_.Push({*into, std::move(status)}, stop) || failed) return;
    }
  });
}

/// `room`: the free bytes of the last batch.
void TensorStream::AddToBatches(const std::string& tensor, std::uint64_t& room) {
  const TensorMeta& meta = reader_.manifest().tensors.at(tensor);
  const std::uint64_t element = DTypeBytes(meta.dtype), total = meta.elements();
  for (std::uint64_t begin = 0; begin < total;) {
    if (room < element) {
      batches_.emplace_back();
      room = window_.size() / 2;
    }
    const std::uint64_t take = std::min(room / element, total - begin);
    batches_.back().push_back({tensor, begin, take * element, begin + take == total});
    room -= take * element;
    begin += take;
  }
}

Status TensorStream::Fetch(const Batch& batch, MutableByteSpan half) const {
  std::vector<Reader::TensorRange> wanted;
  for (const BatchSlice& slice : batch) {
    wanted.push_back({.tensor = slice.tensor, .begin = slice.begin, .into = half.first(slice.bytes)});
    half = half.subspan(slice.bytes);
  }
  return reader_.ReadMany(wanted, kReads, call_);
}

Status TensorStream::Stream(const std::string& tensor, const ByteSink& sink) {
  const TensorMeta& meta = reader_.manifest().tensors.at(tensor);
  const std::uint64_t element = DTypeBytes(meta.dtype), total = meta.elements();
  if (total == 0) return {};
  if (!batches_.empty()) return StreamAnnounced(sink);
  for (std::uint64_t begin = 0; begin < total;) {
    const std::uint64_t take = std::min(window_.size() / element, total - begin);
    const MutableByteSpan part = window_.span().first(take * element);
    MR_TRY(reader_.Read(tensor, begin, part, call_));
    MR_TRY(Deliver(tensor, begin, part, sink));
    begin += take;
  }
  return {};
}

Status TensorStream::StreamAnnounced(const ByteSink& sink) {
  for (bool last = false; !last;) {
    if (!current_) {
      auto fetched = fetched_.Pop();
      MR_TRY(Status(fetched->status));
      current_ = fetched->half;
      offset_ = 0;
    }
    const Batch& batch = batches_[batch_];
    const BatchSlice& slice = batch[slice_++];
    last = slice.is_last;
    MR_TRY(Deliver(slice.tensor, slice.begin, current_->subspan(offset_, slice.bytes), sink));
    offset_ += slice.bytes;
    if (slice_ < batch.size()) continue;
    free_.Push(*std::exchange(current_, std::nullopt));
    ++batch_;
    slice_ = 0;
  }
  return {};
}

Status TensorStream::Deliver(const std::string& tensor, std::uint64_t first, MutableByteSpan bytes,
                             const ByteSink& sink) const {
  if (change_) change_(tensor, first, bytes);
  MR_TRY(sink(bytes));
  if (progress_) progress_(bytes.size());
  return {};
}

}  // namespace millrace::checkpoint
