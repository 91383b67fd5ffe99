// The pool of a model's cache blocks: free, in use, or known by the tokens that they hold. Sequences that begin alike
// share the blocks of their beginning, so that a chat's system prompt is computed once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "millrace/serve/language_model.h"

namespace millrace::serve {

/// Counts the users of each block. A full block may be published: it is a node of a trie, whose path from the root is
/// all tokens up to the block's end. Published blocks that nobody uses stay until their memory is wanted, the least
/// recently used first. One owner, no locking.
class BlockPool {
 public:
  explicit BlockPool(CacheSize size);
  int block_tokens() const { return size_.block_tokens; }
  /// Returns how many blocks Take() can give.
  int available() const { return static_cast<int>(free_.size() + unused_.size()); }
  /// Returns how many blocks somebody uses.
  int used() const { return size_.blocks - available(); }

  /// Returns the published blocks that hold the longest beginning of `tokens`, and counts the caller as a user of each.
  /// At least one token is left over, whose logits can be computed. `root`: sequences of different roots share nothing.
  std::vector<std::int32_t> Share(std::span<const TokenId> tokens, std::uint64_t root = 0);
  /// Returns a block that the caller alone uses; -1 if none is available.
  std::int32_t TakeBlock();
  /// Makes the last of `blocks` known, which the caller uses. `tokens` are those of all of `blocks`, which they fill.
  /// If another block is known by the same tokens, it takes the place of the last one.
  void Publish(std::span<const TokenId> tokens, std::span<std::int32_t> blocks, std::uint64_t root = 0);
  /// The caller no longer uses the blocks of one sequence.
  void Release(std::span<const std::int32_t> blocks);

 private:
  /// Returns the parent of the first blocks of sequences of this root.
  static std::int64_t ParentOf(std::uint64_t root) { return -1 - static_cast<std::int64_t>(root); }
  /// A node of the tries. Its parent is a block, or negative: the root. Whoever uses a block uses its parent, too, and
  /// lets go of the parent later. So a parent is evicted behind its children, and its number means no other tokens
  /// meanwhile.
  struct Key {
    std::int64_t parent = -1;
    std::vector<TokenId> tokens;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  using Nodes = std::unordered_map<Key, std::int32_t, KeyHash>;
  struct Block {
    int users = 0;
    Nodes::iterator node;  ///< end(): not published
    std::list<std::int32_t>::iterator unused;
  };
  Block& At(std::int32_t block) { return blocks_[static_cast<std::size_t>(block)]; }
  Key KeyOf(std::int64_t parent, std::span<const TokenId> tokens, std::size_t index) const;
  void Use(std::int32_t block);

  const CacheSize size_;
  std::vector<Block> blocks_;
  Nodes nodes_;
  std::vector<std::int32_t> free_;
  std::list<std::int32_t> unused_;  ///< published blocks without users, the one to evict first in front
};

}  // namespace millrace::serve
