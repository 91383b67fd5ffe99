#include "millrace/serve/block_pool.h"

#include <algorithm>
#include <ranges>

namespace millrace::serve {

BlockPool::BlockPool(CacheSize size) : size_(size), blocks_(static_cast<std::size_t>(size.blocks)) {
  nodes_.reserve(blocks_.size());  // so that no iterator becomes invalid
  for (Block& block : blocks_) block.node = nodes_.end();
  for (std::int32_t block = size.blocks; block > 0;) free_.push_back(--block);
}

std::size_t BlockPool::KeyHash::operator()(const Key& key) const {
  std::uint64_t hash = static_cast<std::uint64_t>(key.parent);
  for (const TokenId token : key.tokens) hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x9e3779b97f4a7c15U;
  return static_cast<std::size_t>(hash ^ (hash >> 32));
}

BlockPool::Key BlockPool::KeyOf(std::int64_t parent, std::span<const TokenId> tokens, std::size_t index) const {
  const auto count = static_cast<std::size_t>(size_.block_tokens);
  const std::span<const TokenId> own = tokens.subspan(index * count, count);
  return {.parent = parent, .tokens = {own.begin(), own.end()}};
}

void BlockPool::Use(std::int32_t block) {
  Block& used = At(block);
  if (used.users++ == 0) unused_.erase(used.unused);
}

std::vector<std::int32_t> BlockPool::Share(std::span<const TokenId> tokens, std::uint64_t root) {
  std::vector<std::int32_t> shared;
  const std::size_t most = (tokens.size() - 1) / static_cast<std::size_t>(size_.block_tokens);
  while (shared.size() < most) {
    const auto found = nodes_.find(KeyOf(shared.empty() ? ParentOf(root) : shared.back(), tokens, shared.size()));
    if (found == nodes_.end()) break;
    Use(found->second);
    shared.push_back(found->second);
  }
  return shared;
}

std::int32_t BlockPool::TakeBlock() {
  if (free_.empty()) {
    if (unused_.empty()) return -1;
    const std::int32_t evicted = unused_.front();
    unused_.pop_front();
    nodes_.erase(At(evicted).node);
    At(evicted).node = nodes_.end();
    free_.push_back(evicted);
  }
  const std::int32_t block = free_.back();
  free_.pop_back();
  At(block).users = 1;
  return block;
}

void BlockPool::Publish(std::span<const TokenId> tokens, std::span<std::int32_t> blocks, std::uint64_t root) {
  const std::size_t last = blocks.size() - 1;
  if (At(blocks[last]).node != nodes_.end()) return;
  const auto [node, inserted] =
      nodes_.try_emplace(KeyOf(last == 0 ? ParentOf(root) : blocks[last - 1], tokens, last), blocks[last]);
  if (inserted) {
    At(blocks[last]).node = node;
    return;
  }
  Use(node->second);
  At(blocks[last]).users = 0;
  free_.push_back(blocks[last]);
  blocks[last] = node->second;
}

void BlockPool::Release(std::span<const std::int32_t> blocks) {
  for (const std::int32_t block : blocks | std::views::reverse) {
    Block& released = At(block);
    if (--released.users > 0) continue;
    if (released.node == nodes_.end()) {
      free_.push_back(block);
    } else {
      released.unused = unused_.insert(unused_.end(), block);
    }
  }
}

}  // namespace millrace::serve
