// A set of strings to find the longest that a text begins with: a double-array trie.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::tokenizer {

/// Immutable once made; keys are not empty. States are numbers: 0 is the root.
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
  /// Of equal keys the one of the lowest value counts. Takes the keys in any order.
  explicit ByteTrie(std::vector<Key> keys);

  bool empty() const { return empty_; }
  /// The state behind `byte`, or kNone.
  std::int32_t Step(std::int32_t state, char byte) const {
    auto at = static_cast<std::size_t>(nodes_[static_cast<std::size_t>(state)].base) + static_cast<std::uint8_t>(byte);
    return nodes_[at].parent == state ? static_cast<std::int32_t>(at) : kNone;
  }
  /// The value of the key that ends in `state`, or kNone.
  std::int32_t Value(std::int32_t state) const { return nodes_[static_cast<std::size_t>(state)].value; }
  Match Longest(std::string_view text) const;
  /// The first place from `from` on where a key begins, text.size() if there is none; `match` is the longest one there.
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
