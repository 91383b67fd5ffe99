#include "millrace/data/formats/input.h"

#include <algorithm>
#include <utility>

namespace millrace::data {

ObjectStream::ObjectStream(const DataObject& object, std::uint64_t offset, object::Call call)
    : object_(object), call_(std::move(call)), relay_(call_.stop, [this] { cancel_.request_stop(); }), asked_(offset) {
  for (std::size_t i = 0; i < kAhead; ++i) Ask();
}

ObjectStream::~ObjectStream() {
  cancel_.request_stop();
  MutexLock lock(mutex_);
  arrived_.Wait(mutex_, {}, [this]() MR_NO_THREAD_SAFETY_ANALYSIS {
    return std::ranges::all_of(ahead_, [](const auto& piece) { return piece->got.has_value(); });
  });
}

void ObjectStream::Ask() {
  if (asked_ >= object_.info.size) return;
  auto owned = std::make_unique<Piece>();
  Piece* piece = owned.get();
  const std::uint64_t bytes = std::min(kPieceBytes, object_.info.size - asked_);
  piece->offset = asked_;
  piece->bytes = given_.size() == bytes ? std::exchange(given_, {}) : Buffer(bytes);
  asked_ += bytes;
  {
    MutexLock lock(mutex_);
    ahead_.push_back(std::move(owned));
  }
  object_.store->Get(object_.info.key,
                     {.range = object::ByteRange{piece->offset, bytes}, .if_match = object_.info.etag},
                     piece->bytes.span(), {.stop = cancel_.get_token(), .deadline = call_.deadline},
                     [this, piece](Result<std::optional<object::GetResult>> got) {
                       // Whoever waits may be gone once the lock is.
                       MutexLock lock(mutex_);
                       piece->got = std::move(got);
                       arrived_.NotifyAll();
                     });
}

Result<ByteSpan> ObjectStream::Next() {
  std::unique_ptr<Piece> piece;
  {
    MutexLock lock(mutex_);
    if (ahead_.empty()) return ByteSpan{};
    arrived_.Wait(mutex_, {}, [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return ahead_.front()->got.has_value(); });
    piece = std::move(ahead_.front());
    ahead_.pop_front();
  }
  MR_TRY(CheckRange(object_, piece->offset, piece->bytes.size(), "reading", *std::move(piece->got)));
  Ask();
  given_ = std::move(piece->bytes);
  return ByteSpan(given_);
}

}  // namespace millrace::data
