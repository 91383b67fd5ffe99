#include "millrace/data/compression/input_stream.h"

#include <algorithm>
#include <utility>

namespace millrace::data {

ObjectInputStream::ObjectInputStream(const DataObject& object, std::uint64_t offset, object::Call call)
    : object_(object), call_(std::move(call)), relay_(call_.stop, [this] { cancel_.request_stop(); }), asked_(offset) {
  for (std::size_t i = 0; i < kAhead; ++i) StartRead();
}

ObjectInputStream::~ObjectInputStream() {
  cancel_.request_stop();
  MutexLock lock(mutex_);
  arrived_.Wait(mutex_, {}, [this]() MR_NO_THREAD_SAFETY_ANALYSIS {
    return std::ranges::all_of(ahead_, [](const auto& read) { return read->got.has_value(); });
  });
}

void ObjectInputStream::StartRead() {
  if (asked_ >= object_.info.size) return;
  auto owned = std::make_unique<PendingRead>();
  PendingRead* read = owned.get();
  const std::uint64_t bytes = std::min(kReadBytes, object_.info.size - asked_);
  read->offset = asked_;
  read->bytes = given_.size() == bytes ? std::exchange(given_, {}) : Buffer(bytes);
  asked_ += bytes;
  {
    MutexLock lock(mutex_);
    ahead_.push_back(std::move(owned));
  }
  object_.store->Get(object_.info.key, {.range = object::ByteRange{read->offset, bytes}, .if_match = object_.info.etag},
                     read->bytes.span(), {.stop = cancel_.get_token(), .deadline = call_.deadline},
                     [this, read](Result<std::optional<object::GetResult>> got) {
                       // Notifies under the lock, because the waiting thread may then destroy this object.
                       MutexLock lock(mutex_);
                       read->got = std::move(got);
                       arrived_.NotifyAll();
                     });
}

Result<ByteSpan> ObjectInputStream::Next() {
  std::unique_ptr<PendingRead> read;
  {
    MutexLock lock(mutex_);
    if (ahead_.empty()) return ByteSpan{};
    arrived_.Wait(mutex_, {}, [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return ahead_.front()->got.has_value(); });
    read = std::move(ahead_.front());
    ahead_.pop_front();
  }
  MR_TRY(CheckRange(object_, read->offset, read->bytes.size(), "reading", *std::move(read->got)));
  StartRead();
  given_ = std::move(read->bytes);
  return ByteSpan(given_);
}

}  // namespace millrace::data
