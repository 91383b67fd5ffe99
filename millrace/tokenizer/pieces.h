// The strings of a vocabulary in one block of memory, and the way back from a string to its id.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// Strings by id. Ids are dense from 0; a string may be empty (an id that nobody uses).
class Pieces {
 public:
  void Reserve(std::size_t count, std::size_t bytes) {
    offsets_.reserve(count + 1);
    text_.reserve(bytes);
  }
  void Add(std::string_view piece) {
    text_ += piece;
    offsets_.push_back(static_cast<std::uint32_t>(text_.size()));
  }
  int size() const { return static_cast<int>(offsets_.size()) - 1; }
  std::string_view operator[](TokenId id) const {
    auto at = static_cast<std::size_t>(id);
    return std::string_view(text_).substr(offsets_[at], offsets_[at + 1] - offsets_[at]);
  }

 private:
  std::string text_;
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
