// The memory that encoding takes, kept between calls so that the hot loop allocates nothing: a cache of words and their
// ids, and room for merging.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/tokenizer/bpe/merger.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// Appends ids to a vector without a call for each.
class IdWriter {
 public:
  IdWriter(std::vector<TokenId>& ids, std::size_t limit) : ids_(ids), at_(ids.size()), limit_(Sum(at_, limit)) {}
  ~IdWriter() { ids_.resize(at_ < limit_ ? at_ : limit_); }
  IdWriter(const IdWriter&) = delete;
  IdWriter& operator=(const IdWriter&) = delete;

  /// Room for `count` more; Advance says how many of them were written.
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
  void Cut(std::size_t size) { at_ = size; }
  /// True when as many ids are there as were asked for; what is beyond is dropped at the end.
  bool full() const { return at_ >= limit_; }

 private:
  static std::size_t Sum(std::size_t a, std::size_t b) { return b > SIZE_MAX - a ? SIZE_MAX : a + b; }
  void Grow(std::size_t count) { ids_.resize(std::max(ids_.size() + ids_.size() / 2, at_ + count + 256)); }

  std::vector<TokenId>& ids_;
  std::size_t at_, limit_;
};

/// Short words and their ids, two places for each hash. A word's ids depend on nothing but its bytes.
class WordCache {
 public:
  static constexpr std::size_t kMaxBytes = 15, kMaxIds = 4;

  struct Key {
    std::uint64_t low, high;  ///< up to 15 bytes, zeros, and the length in the highest byte
    bool operator==(const Key&) const = default;
  };
  struct Entry {
    Key key{0, 0};
    std::array<TokenId, kMaxIds> ids;  ///< kNoToken where there are fewer
  };
  struct alignas(64) Set {
    Entry entries[2];
  };

  /// `size` is 1 … kMaxBytes. Reads 16 bytes where they are known to be there.
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
    Entry& entry = set.entries[0];
    entry.key = key;
    for (std::size_t i = 0; i < kMaxIds; ++i) entry.ids[i] = i < ids.size() ? ids[i] : kNoToken;
  }

 private:
  static constexpr std::size_t kSets = 1u << 14;  // 1 MiB
  std::unique_ptr<Set[]> sets_ = std::make_unique<Set[]>(kSets);
};

/// Longer words and their ids, one place for each hash: rules of dashes, indentation, long names.
class LongWordCache {
 public:
  static constexpr std::size_t kMinBytes = WordCache::kMaxBytes + 1, kMaxBytes = 192, kMaxIds = 14;

  struct alignas(64) Entry {
    std::uint32_t size = 0, count = 0;
    std::array<TokenId, kMaxIds> ids;
    std::array<char, kMaxBytes> word;

    bool Holds(std::string_view other) const {
      return size == other.size() && std::memcmp(word.data(), other.data(), size) == 0;
    }
  };

  /// Where a word of kMinBytes … kMaxBytes is if it is there.
  Entry& At(std::string_view word) {
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
  static void Put(Entry& entry, std::string_view word, std::span<const TokenId> ids) {
    entry.size = static_cast<std::uint32_t>(word.size());
    entry.count = static_cast<std::uint32_t>(ids.size());
    std::ranges::copy(word, entry.word.begin());
    std::ranges::copy(ids, entry.ids.begin());
  }

 private:
  static constexpr int kBits = 9;  // 128 KiB
  std::unique_ptr<Entry[]> entries_ = std::make_unique<Entry[]>(1u << kBits);
};

/// The best way to the end of a prefix of a text (unigram models).
struct PathNode {
  float score = 0;
  TokenId id = kNoToken;    ///< of its last token; kNoToken: no way found yet
  std::uint32_t start = 0;  ///< where that token begins
};

/// The same, of models that sum in double precision, word by word.
struct WordPathNode {
  double score = 0;
  TokenId id = kNoToken;
  std::uint32_t start = 0;
};

/// What one call works with; one thread at a time.
struct Scratch {
  WordCache words;
  LongWordCache long_words;
  Merger merger;
  std::vector<Symbol> symbols;
  std::vector<PathNode> path;
  std::vector<WordPathNode> word_path;
  std::string text;
};

/// As EncodeWord, for words that are too long for its cache.
template <class Encode>
void EncodeLongWord(std::string_view word, Scratch& scratch, IdWriter& ids, Encode&& encode) {
  if (word.size() > LongWordCache::kMaxBytes) return encode(word);
  LongWordCache::Entry& entry = scratch.long_words.At(word);
  if (entry.Holds(word)) {
    std::memcpy(ids.Room(LongWordCache::kMaxIds), entry.ids.data(), sizeof entry.ids);
    return ids.Advance(entry.count);
  }
  std::size_t before = ids.size();
  encode(word);
  std::size_t count = ids.size() - before;
  if (count <= LongWordCache::kMaxIds) LongWordCache::Put(entry, word, {ids.from(before), count});
}

/// Writes the ids of one word: from the cache, or by `encode(word)`, which appends them to `ids`. `end` is where the
/// memory that may be read ends.
template <class Encode>
inline void EncodeWord(std::string_view word, const char* end, Scratch& scratch, IdWriter& ids, Encode&& encode) {
  if (word.size() > WordCache::kMaxBytes) return EncodeLongWord(word, scratch, ids, encode);
  WordCache::Key key = WordCache::MakeKey(word.data(), word.size(), end);
  WordCache::Set& set = scratch.words.At(key);
  for (const WordCache::Entry& entry : set.entries) {
    if (entry.key == key) [[likely]] {
      std::memcpy(ids.Room(WordCache::kMaxIds), entry.ids.data(), sizeof entry.ids);
      ids.Advance(1u + (entry.ids[1] >= 0) + (entry.ids[2] >= 0) + (entry.ids[3] >= 0));
      return;
    }
  }
  std::size_t before = ids.size();
  encode(word);
  std::size_t count = ids.size() - before;
  if (count >= 1 && count <= WordCache::kMaxIds) WordCache::Put(set, key, {ids.from(before), count});
}

/// Scratches that are not in use. Any thread.
class ScratchPool {
 public:
  class Lease {
   public:
    explicit Lease(ScratchPool& pool) : pool_(pool), scratch_(pool.Take()) {}
    ~Lease() { pool_.Return(std::move(scratch_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Scratch& operator*() { return *scratch_; }

   private:
    ScratchPool& pool_;
    std::unique_ptr<Scratch> scratch_;
  };

 private:
  static constexpr std::size_t kMaxKept = 64;

  std::unique_ptr<Scratch> Take();
  void Return(std::unique_ptr<Scratch> scratch);

  Mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::tokenizer
