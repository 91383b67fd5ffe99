// Caches of words and their ids. Most words of a text were seen before.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// The ids of short words. Two-way set associative. The ids of a word depend only on its bytes. One thread at a time.
class WordCache {
 public:
  // A key is 16 bytes, with the length in the last. With 4 ids a word takes 32 bytes, and a set one cache line.
  static constexpr std::size_t kMaxBytes = 15, kMaxIds = 4;

  struct Key {
    std::uint64_t low, high;  ///< up to 15 bytes, zeros, and the length in the highest byte
    bool operator==(const Key&) const = default;
  };
  struct CachedWord {
    Key key{0, 0};
    std::array<TokenId, kMaxIds> ids;  ///< kNoToken behind the last id
  };
  struct alignas(64) Set {
    CachedWord entries[2];
  };

  /// REQUIRES: 1 <= `size` <= kMaxBytes. Reads 16 bytes if `end` shows that these bytes exist.
  static Key MakeKey(const char* word, std::size_t size, const char* end) {
    Key key{0, 0};
    if (end - word >= 16) [[likely]] {
      std::memcpy(&key, word, 16);
      if (size < 8) {
        key.low &= (1ull << (8 * size)) - 1;
        key.high = 0;
      } else {
        key.high &= (1ull << (8 * (size - 8))) - 1;
      }
    } else {
      std::memcpy(&key, word, size);
    }
    key.high |= static_cast<std::uint64_t>(size) << 56;
    return key;
  }
  Set& At(const Key& key) {
    auto product = static_cast<unsigned __int128>(key.low ^ 0x9E3779B97F4A7C15u) * (key.high ^ 0xD6E8FEB86659FD93u);
    auto hash = static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
    return sets_[hash & (kSets - 1)];
  }
  static void Put(Set& set, const Key& key, std::span<const TokenId> ids) {
    set.entries[1] = set.entries[0];
    CachedWord& entry = set.entries[0];
    entry.key = key;
    for (std::size_t i = 0; i < kMaxIds; ++i) entry.ids[i] = i < ids.size() ? ids[i] : kNoToken;
  }

 private:
  static constexpr std::size_t kSets = 1u << 14;  // 1 MiB: about the second-level cache of a core
  std::unique_ptr<Set[]> sets_ = std::make_unique<Set[]>(kSets);
};

/// The ids of longer words: lines of dashes, indentation, long names. Direct-mapped. One thread at a time.
class LongWordCache {
 public:
  static constexpr std::size_t kMinBytes = WordCache::kMaxBytes + 1, kMaxBytes = 192, kMaxIds = 14;

  struct alignas(64) CachedWord {
    std::uint32_t size = 0, count = 0;
    std::array<TokenId, kMaxIds> ids;
    std::array<char, kMaxBytes> word;

    bool Holds(std::string_view other) const {
      return size == other.size() && std::memcmp(word.data(), other.data(), size) == 0;
    }
  };

  /// Returns the slot of a word. REQUIRES: its size is from kMinBytes to kMaxBytes.
  CachedWord& At(std::string_view word) {
    auto load = [&](std::size_t at) {
      std::uint64_t bytes;
      std::memcpy(&bytes, word.data() + at, sizeof bytes);
      return bytes;
    };
    std::uint64_t hash = word.size();
    for (std::size_t at = 0; at + 8 < word.size(); at += 8)
      hash = (hash ^ load(at)) * 0x9E3779B97F4A7C15u, hash ^= hash >> 32;
    hash = (hash ^ load(word.size() - 8)) * 0x9E3779B97F4A7C15u;
    return entries_[hash >> (64 - kBits)];
  }
  static void Put(CachedWord& entry, std::string_view word, std::span<const TokenId> ids) {
    entry.size = static_cast<std::uint32_t>(word.size());
    entry.count = static_cast<std::uint32_t>(ids.size());
    std::ranges::copy(word, entry.word.begin());
    std::ranges::copy(ids, entry.ids.begin());
  }

 private:
  static constexpr int kBits = 9;  // a guess: 128 KiB
  std::unique_ptr<CachedWord[]> entries_ = std::make_unique<CachedWord[]>(1u << kBits);
};

}  // namespace millrace::tokenizer
