#include "millrace/tokenizer/tables/byte_trie.h"

#include <algorithm>
#include <span>

namespace millrace::tokenizer {

/// Places the children of one state after another, depth first, where they fit.
class ByteTrie::Builder {
 public:
  explicit Builder(std::vector<Node>& nodes) : nodes_(nodes) {
    nodes_.assign(1 + 256, {});
    nodes_[0].parent = 0;
    // A root that is its own parent would find itself at byte -base: its base is at least 1.
  }

  /// `keys` are sorted, distinct, and share their first `depth` bytes, which lead to `state`.
  void Place(std::int32_t state, std::span<const Key> keys, std::size_t depth) {
    if (!keys.empty() && keys.front().text.size() == depth) {
      nodes_[static_cast<std::size_t>(state)].value = keys.front().value;
      keys = keys.subspan(1);
    }
    std::vector<std::pair<std::uint8_t, std::span<const Key>>> children;
    while (!keys.empty()) {
      char byte = keys.front().text[depth];
      auto end = std::ranges::find_if(keys, [&](const Key& key) { return key.text[depth] != byte; });
      auto count = static_cast<std::size_t>(end - keys.begin());
      children.emplace_back(static_cast<std::uint8_t>(byte), keys.first(count));
      keys = keys.subspan(count);
    }
    std::int32_t base = Fit(children);
    nodes_[static_cast<std::size_t>(state)].base = base;
    for (auto& [byte, unused] : children) nodes_[static_cast<std::size_t>(base) + byte].parent = state;
    for (auto& [byte, below] : children) Place(base + byte, below, depth + 1);
  }

 private:
  bool Free(std::size_t at) const { return at >= nodes_.size() || nodes_[at].parent == kNone; }

  template <class Children>
  std::int32_t Fit(const Children& children) {
    if (children.empty()) return 1;
    while (!Free(first_free_)) ++first_free_;
    std::size_t lowest = children.front().first, tries = 0;
    std::size_t at = std::max(first_free_, lowest + 1);
    for (;; ++at) {
      // After 64 tries gives up the crowded beginning of the array, so that building takes linear time. A guess.
      if (++tries > 64 && first_free_ < at) first_free_ = std::max(first_free_, at - 64);
      if (std::ranges::all_of(children, [&](auto& child) { return Free(at - lowest + child.first); })) break;
    }
    std::size_t base = at - lowest;
    if (nodes_.size() < base + 2 * 256) nodes_.resize(base + 2 * 256);
    return static_cast<std::int32_t>(base);
  }

  std::vector<Node>& nodes_;
  std::size_t first_free_ = 1;
};

ByteTrie::ByteTrie(std::vector<Key> keys) : empty_(keys.empty()) {
  std::ranges::sort(keys, {}, [](const Key& key) { return std::pair(key.text, key.value); });
  auto repeated = std::ranges::unique(keys, {}, &Key::text);
  keys.erase(repeated.begin(), repeated.end());
  for (const Key& key : keys) begins_[static_cast<std::uint8_t>(key.text[0])] = true;
  Builder(nodes_).Place(0, keys, 0);
}

ByteTrie::Match ByteTrie::Longest(std::string_view text) const {
  Match match;
  std::int32_t state = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    state = Step(state, text[i]);
    if (state == kNone) break;
    if (Value(state) != kNone) match = {i + 1, Value(state)};
  }
  return match;
}

std::size_t ByteTrie::Find(std::string_view text, std::size_t from, Match& match) const {
  for (; from < text.size(); ++from) {
    if (!begins_[static_cast<std::uint8_t>(text[from])]) continue;
    match = Longest(text.substr(from));
    if (match.length > 0) return from;
  }
  return text.size();
}

}  // namespace millrace::tokenizer
