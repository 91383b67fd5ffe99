// The memory that a call of Encode works with. Calls reuse it, so that the inner loops allocate nothing.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/tokenizer/bpe/merger.h"
#include "millrace/tokenizer/tokenizer.h"
#include "millrace/tokenizer/vocabulary/id_writer.h"
#include "millrace/tokenizer/vocabulary/word_cache.h"

namespace millrace::tokenizer {

/// The best path to the end of a prefix of a text (unigram models).
struct PathNode {
  float score = 0;
  TokenId id = kNoToken;    ///< of the path's last token; kNoToken if no path was found yet
  std::uint32_t start = 0;  ///< the position at which the last token begins
};

/// The same for models that sum in double precision, word by word.
struct WordPathNode {
  double score = 0;
  TokenId id = kNoToken;
  std::uint32_t start = 0;
};

/// The working memory of one call. One thread at a time.
struct EncodeWorkspace {
  WordCache words;
  LongWordCache long_words;
  Merger merger;
  std::vector<Symbol> symbols;
  std::vector<PathNode> path;
  std::vector<WordPathNode> word_path;
  std::string text;
};

/// As EncodeWord(), for words that are too long for WordCache.
template <class Encode>
void EncodeLongWord(std::string_view word, EncodeWorkspace& workspace, IdWriter& ids, Encode&& encode) {
  if (word.size() > LongWordCache::kMaxBytes) return encode(word);
  LongWordCache::CachedWord& entry = workspace.long_words.At(word);
  if (entry.Holds(word)) {
    std::memcpy(ids.Room(LongWordCache::kMaxIds), entry.ids.data(), sizeof entry.ids);
    return ids.Advance(entry.count);
  }
  std::size_t before = ids.size();
  encode(word);
  std::size_t count = ids.size() - before;
  if (count <= LongWordCache::kMaxIds) LongWordCache::Put(entry, word, {ids.from(before), count});
}

/// Appends the ids of one word: from the cache, or else by encode(word), which appends them to `ids`. `end` is the end
/// of the memory that may be read.
template <class Encode>
inline void EncodeWord(std::string_view word, const char* end, EncodeWorkspace& workspace, IdWriter& ids,
                       Encode&& encode) {
  if (word.size() > WordCache::kMaxBytes) return EncodeLongWord(word, workspace, ids, encode);
  WordCache::Key key = WordCache::MakeKey(word.data(), word.size(), end);
  WordCache::Set& set = workspace.words.At(key);
  for (const WordCache::CachedWord& entry : set.entries) {
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

/// Lends workspaces to calls, and keeps those that are not in use. Any thread.
class WorkspacePool {
 public:
  /// A workspace for the lifetime of the lease. The pool must outlive it.
  class Lease {
   public:
    explicit Lease(WorkspacePool& pool) : pool_(pool), workspace_(pool.Take()) {}
    ~Lease() { pool_.Return(std::move(workspace_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    EncodeWorkspace& operator*() { return *workspace_; }

   private:
    WorkspacePool& pool_;
    std::unique_ptr<EncodeWorkspace> workspace_;
  };

 private:
  static constexpr std::size_t kMaxKept = 64;  // a guess: about 72 MiB of caches

  std::unique_ptr<EncodeWorkspace> Take();
  void Return(std::unique_ptr<EncodeWorkspace> workspace);

  Mutex mutex_;
  std::vector<std::unique_ptr<EncodeWorkspace>> free_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::tokenizer
