// Maps strings to numbers, and finds the longest string that a text begins with. A double-array trie (Aoe, 1989).
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::tokenizer {

/// Keys are not empty. A state is a number, and 0 is the root. Immutable; any thread.
class ByteTrie {
 public:
  static constexpr std::int32_t kNone = -1;
  struct Key {
    std::string_view text;
    std::int32_t value = 0;  ///< not negative
  };
  struct Match {
    std::size_t length = 0;  ///< 0: nothing
    std::int32_t value = kNone;
  };

  ByteTrie() : ByteTrie(std::vector<Key>()) {}
  /// Takes the keys in any order. Of equal keys, the lowest value counts.
  explicit ByteTrie(std::vector<Key> keys);

  bool empty() const { return empty_; }
  /// Returns the state that `byte` leads to, or kNone.
  std::int32_t Step(std::int32_t state, char byte) const {
    auto at = static_cast<std::size_t>(nodes_[static_cast<std::size_t>(state)].base) + static_cast<std::uint8_t>(byte);
    return nodes_[at].parent == state ? static_cast<std::int32_t>(at) : kNone;
  }
  /// Returns the value of the key that ends in `state`, or kNone.
  std::int32_t Value(std::int32_t state) const { return nodes_[static_cast<std::size_t>(state)].value; }
  /// Returns the longest key that `text` begins with.
  Match Longest(std::string_view text) const;
  /// Returns the first position from `from` on at which a key begins, or text.size(). `match` becomes the longest key
  /// there.
  std::size_t Find(std::string_view text, std::size_t from, Match& match) const;

 private:
  struct Node {
    std::int32_t base = 0;  ///< children are at base + byte; always at least 256 nodes follow
    std::int32_t parent = kNone;
    std::int32_t value = kNone;
  };
  class Builder;

  std::vector<Node> nodes_;
  bool begins_[256] = {};
  bool empty_ = true;
};

}  // namespace millrace::tokenizer
