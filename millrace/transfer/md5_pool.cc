#include "millrace/transfer/md5_pool.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

namespace millrace::transfer {

Buffer Md5Pool::Take() {
  MutexLock lock(mutex_);
  if (spare_.empty()) return Buffer(kPieceBytes);
  Buffer buffer = std::move(spare_.back());
  spare_.pop_back();
  return buffer;
}

void Md5Pool::Add(Queue& queue, Buffer piece) {
  {
    MutexLock lock(mutex_);
    queue.pieces.push_back(std::move(piece));
    ++waiting_;
    if (queue.pieces.size() == 1) ready_.push_back(&queue);
  }
  for (;;) {
    {
      MutexLock lock(mutex_);
      while (waiting_ >= kMostWaiting && ready_.empty()) changed_.Wait(mutex_);  // all that waits is in work
      if (ready_.size() < kMd5Lanes && waiting_ < kMostWaiting) return;
    }
    HashWaiting();
  }
}

void Md5Pool::AwaitHashed(Queue& queue) {
  for (;;) {
    {
      MutexLock lock(mutex_);
      while (queue.in_work) changed_.Wait(mutex_);
      if (queue.pieces.empty()) return;
    }
    HashWaiting();
  }
}

void Md5Pool::HashWaiting() {
  std::array<Queue*, kMd5Lanes> queues;
  std::array<Md5Lane, kMd5Lanes> lanes;
  std::size_t count = 0;
  {
    MutexLock lock(mutex_);
    count = std::min(ready_.size(), kMd5Lanes);
    for (std::size_t i = 0; i < count; ++i) {
      queues[i] = ready_.front();
      ready_.pop_front();
      queues[i]->in_work = true;
      lanes[i] = {&queues[i]->state, queues[i]->pieces.front().data()};
    }
  }
  Md5Compress(std::span(lanes).first(count), kPieceBytes / kMd5BlockBytes);
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < count; ++i) {
    Queue& queue = *queues[i];
    spare_.push_back(std::move(queue.pieces.front()));
    queue.pieces.pop_front();
    queue.in_work = false;
    if (!queue.pieces.empty()) ready_.push_back(&queue);
  }
  waiting_ -= count;
  changed_.NotifyAll();
}

void Md5Pool::Stream::Append(ByteSpan bytes) {
  total_ += bytes.size();
  while (!bytes.empty()) {
    if (filling_.empty()) filling_ = pool_.Take();
    const std::size_t some = std::min(bytes.size(), kPieceBytes - filled_);
    std::memcpy(filling_.data() + filled_, bytes.data(), some);
    filled_ += some;
    bytes = bytes.subspan(some);
    if (filled_ < kPieceBytes) return;
    filled_ = 0;
    pool_.Add(queue_, std::exchange(filling_, Buffer()));
  }
}

Md5Digest Md5Pool::Stream::Finish() {
  pool_.AwaitHashed(queue_);
  const ByteSpan tail = filled_ == 0 ? ByteSpan() : ByteSpan(filling_.span()).first(filled_);
  const Md5Digest digest = Md5Finish(queue_.state, tail, total_);
  Reset();
  return digest;
}

void Md5Pool::Stream::Reset() {
  pool_.AwaitHashed(queue_);
  queue_.state = Md5State();
  filled_ = 0;
  total_ = 0;
}

}  // namespace millrace::transfer
