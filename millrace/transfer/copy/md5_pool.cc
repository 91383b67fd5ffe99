#include "millrace/transfer/copy/md5_pool.h"

#include <algorithm>
#include <array>
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
    begun_ += std::exchange(queue.begun, true) ? 0 : 1;
  }
  for (;;) {
    {
      MutexLock lock(mutex_);
      while (waiting_ >= kMaxWaiting && ready_.empty()) changed_.Wait(mutex_);  // other threads hash all of them
      if (!WorthHashing()) return;
    }
    HashWaiting();
  }
}

void Md5Pool::Drain(Queue& queue) {
  for (;;) {
    {
      MutexLock lock(mutex_);
      while (queue.in_work) changed_.Wait(mutex_);
      if (queue.pieces.empty()) {
        begun_ -= std::exchange(queue.begun, false) ? 1 : 0;
        return;
      }
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

void Md5Pool::Stream::Append(Buffer piece, std::size_t size) {
  total_ += size;
  if (size == kPieceBytes) return pool_.Add(queue_, std::move(piece));
  last_ = std::move(piece);
  last_bytes_ = size;
}

Md5Digest Md5Pool::Stream::Finish() {
  pool_.Drain(queue_);
  const Md5Digest digest = Md5Finish(queue_.state, ByteSpan(last_).first(last_bytes_), total_);
  Reset();
  return digest;
}

void Md5Pool::Stream::Reset() {
  pool_.Drain(queue_);
  queue_.state = Md5State();
  last_bytes_ = 0;
  total_ = 0;
}

}  // namespace millrace::transfer
