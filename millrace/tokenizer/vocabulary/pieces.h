// The strings of a vocabulary in one block of memory, and the way back from a string to its id.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// Strings by id. Ids are dense from 0; a string may be empty (an id that nobody uses).
class Pieces {
 public:
  /// That many bytes behind the last string are there too, so that short ones are copied as so many, whatever they
  /// have.
  static constexpr std::size_t kSlack = 16;

  void Reserve(std::size_t count, std::size_t bytes) {
    offsets_.reserve(count + 1);
    text_.reserve(bytes + kSlack);
  }
  void Add(std::string_view piece) {
    text_.resize(offsets_.back());
    text_ += piece;
    offsets_.push_back(static_cast<std::uint32_t>(text_.size()));
    text_.append(kSlack, '\0');
  }
  int size() const { return static_cast<int>(offsets_.size()) - 1; }
  std::string_view operator[](TokenId id) const {
    auto at = static_cast<std::size_t>(id);
    return {text_.data() + offsets_[at], offsets_[at + 1] - offsets_[at]};
  }
  /// Writes it to `to`, where kSlack bytes more have room, and returns its end there.
  char* Copy(TokenId id, char* to) const {
    std::string_view piece = (*this)[id];
    std::memcpy(to, piece.data(), kSlack);
    if (piece.size() > kSlack) [[unlikely]]
      std::memcpy(to + kSlack, piece.data() + kSlack, piece.size() - kSlack);
    return to + piece.size();
  }

 private:
  std::string text_ = std::string(kSlack, '\0');
  std::vector<std::uint32_t> offsets_ = {0};
};

/// Strings to ids. Holds no strings: `Pieces` must outlive it and not move. Open addressing, at most half full.
class PieceIndex {
 public:
  PieceIndex() = default;
  PieceIndex(const Pieces& pieces, std::size_t expected);

  /// False when the string is there already, under another id.
  bool Insert(TokenId id);
  /// kNoToken when it is not there.
  TokenId Find(std::string_view piece) const;

 private:
  struct Slot {
    std::uint32_t tag = 0;
    TokenId id = kNoToken;
  };
  const Pieces* pieces_ = nullptr;
  std::size_t mask_ = 0;
  std::vector<Slot> slots_;
};

}  // namespace millrace::tokenizer
