// Appends token ids to a vector, up to a limit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// Appends ids to a vector. Ids beyond `limit` new ones are dropped when the writer is destroyed. Borrows the vector,
/// whose size is valid only afterwards. One thread.
class IdWriter {
 public:
  IdWriter(std::vector<TokenId>& ids, std::size_t limit) : ids_(ids), at_(ids.size()), limit_(Sum(at_, limit)) {}
  ~IdWriter() { ids_.resize(at_ < limit_ ? at_ : limit_); }
  IdWriter(const IdWriter&) = delete;
  IdWriter& operator=(const IdWriter&) = delete;

  /// Returns room for `count` more ids. Advance() then says how many were written.
  TokenId* Room(std::size_t count) {
    if (ids_.size() - at_ < count) [[unlikely]]
      Grow(count);
    return ids_.data() + at_;
  }
  void Advance(std::size_t count) { at_ += count; }
  void Append(TokenId id) {
    *Room(1) = id;
    ++at_;
  }
  std::size_t size() const { return at_; }
  TokenId* from(std::size_t at) { return ids_.data() + at; }
  /// Drops the ids from position `size` on.
  void Cut(std::size_t size) { at_ = size; }
  /// Returns whether the limit is reached.
  bool full() const { return at_ >= limit_; }

 private:
  static std::size_t Sum(std::size_t a, std::size_t b) { return b > SIZE_MAX - a ? SIZE_MAX : a + b; }
  void Grow(std::size_t count) { ids_.resize(std::max(ids_.size() + ids_.size() / 2, at_ + count + 256)); }

  std::vector<TokenId>& ids_;
  std::size_t at_, limit_;
};

}  // namespace millrace::tokenizer
