#include "millrace/transfer/md5_pool.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

namespace millrace::transfer {

void Md5Pool::AwaitHashed(Piece& piece) {
  for (;;) {
    {
      MutexLock lock(mutex_);
      while (piece.stage == Piece::Stage::kInWork) changed_.Wait(mutex_);
      if (piece.stage == Piece::Stage::kHashed) return;
    }
    HashWaiting();
  }
}

void Md5Pool::Add(Piece& piece) {
  bool full = false;
  {
    MutexLock lock(mutex_);
    piece.stage = Piece::Stage::kWaiting;
    waiting_.push_back(&piece);
    full = waiting_.size() >= kMd5Lanes;
  }
  if (full) HashWaiting();
}

void Md5Pool::HashWaiting() {
  std::array<Piece*, kMd5Lanes> pieces;
  std::array<Md5Lane, kMd5Lanes> lanes;
  std::size_t count = 0;
  {
    MutexLock lock(mutex_);
    count = std::min(waiting_.size(), kMd5Lanes);
    for (std::size_t i = 0; i < count; ++i) {
      pieces[i] = waiting_[i];
      pieces[i]->stage = Piece::Stage::kInWork;
      lanes[i] = {&pieces[i]->state, pieces[i]->bytes.span().data()};
    }
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
  }
  Md5Compress(std::span(lanes).first(count), kPieceBytes / kMd5BlockBytes);
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < count; ++i) pieces[i]->stage = Piece::Stage::kHashed;
  changed_.NotifyAll();
}

void Md5Pool::Stream::Append(ByteSpan bytes) {
  total_ += bytes.size();
  while (!bytes.empty()) {
    if (filling_.size() == 0) filling_ = Buffer(kPieceBytes);
    const std::size_t some = std::min(bytes.size(), kPieceBytes - filled_);
    std::memcpy(filling_.span().data() + filled_, bytes.data(), some);
    filled_ += some;
    bytes = bytes.subspan(some);
    if (filled_ < kPieceBytes) return;
    pool_.AwaitHashed(piece_);
    std::swap(piece_.bytes, filling_);
    filled_ = 0;
    pool_.Add(piece_);
  }
}

Md5Digest Md5Pool::Stream::Finish() {
  pool_.AwaitHashed(piece_);
  const ByteSpan tail = filled_ == 0 ? ByteSpan() : ByteSpan(filling_.span()).first(filled_);
  const Md5Digest digest = Md5Finish(piece_.state, tail, total_);
  Reset();
  return digest;
}

void Md5Pool::Stream::Reset() {
  pool_.AwaitHashed(piece_);
  piece_.state = Md5State();
  filled_ = 0;
  total_ = 0;
}

}  // namespace millrace::transfer
