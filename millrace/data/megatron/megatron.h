// Token ids as Megatron-LM keeps them: NAME.bin is the ids of all documents, one after another, and NAME.idx says how
// long each is. docs/formats/megatron.md has the bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/data/content/content.h"
#include "millrace/data/index/record_index.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::data {

/// Two unsigned bytes where every id of the vocabulary fits below Megatron's limit of 65,500, else four signed ones.
constexpr int TokenBytesFor(int vocab_size) { return vocab_size < 65'500 ? 2 : 4; }

/// Appends ids as a .bin stores them. They must fit.
void AppendTokens(std::span<const tokenizer::TokenId> ids, int token_bytes, std::string& into);

/// Appends the first `count` ids of a document's bytes, or all. Fails with kCorrupt on one that is not below
/// `vocab_size`; `what` names the document.
Status ParseTokens(ByteSpan bytes, int token_bytes, std::size_t count, int vocab_size, std::string_view what,
                   std::vector<tokenizer::TokenId>& into);

/// The .idx of a .bin that is being written: told each document's length, in order. Four bytes a document. One owner.
class TokenTableWriter {
 public:
  explicit TokenTableWriter(int token_bytes) : token_bytes_(token_bytes) {}
  /// A document of no tokens is kept as one.
  void AddDocument(std::uint32_t tokens);
  std::uint64_t documents() const { return lengths_.size(); }
  std::uint64_t tokens() const { return tokens_; }
  /// Hands the bytes of the .idx, the same ones as Megatron-LM's own writer makes, to `sink` a MiB at a time.
  Status Write(const std::function<Status(ByteSpan)>& sink) const;

 private:
  const int token_bytes_;
  std::vector<std::uint32_t> lengths_;
  std::uint64_t sequences_ = 0;  ///< documents with tokens
  std::uint64_t tokens_ = 0;
};

/// The .idx's key for a .bin's.
std::string TokenTableKey(std::string_view bin_key);

/// Makes `object`, a .bin, an object of token ids: sets its token_bytes and table. `table`: what a listing or Head told
/// of the .idx. Reads its first bytes. Fails with kCorrupt when it is no such table, with kUnsupported when it holds
/// other numbers than token ids. Blocks.
Status OpenTokenFile(DataObject& object, object::ObjectInfo table, object::Call call);

/// The index of an object of token ids, from its table alone. Empty documents are nothing, as blank lines are. Fails
/// with kCorrupt where the table's parts contradict each other or the object's size. Blocks.
Result<RecordIndex> IndexTokenFile(const DataObject& object, object::Call call);

}  // namespace millrace::data
