// Token ids as Megatron-LM stores them: NAME.bin holds the ids of all documents, one after another, and NAME.idx the
// length of each. docs/formats/megatron.md has the bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/data/records/data_object.h"
#include "millrace/data/records/record_index.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::data {

/// Returns 2 (unsigned) if the vocabulary is below Megatron's limit of 65,500 ids, else 4 (signed).
constexpr int TokenBytesFor(int vocab_size) { return vocab_size < 65'500 ? 2 : 4; }

/// Appends ids as a .bin stores them. REQUIRES: they fit into token_bytes.
void AppendTokens(std::span<const tokenizer::TokenId> ids, int token_bytes, std::string& into);

/// Appends the first `count` ids of a document's bytes, or all if there are fewer. `what` names the document in errors.
/// Errors: kCorrupt if an id is not below `vocab_size`.
Status ParseTokens(ByteSpan bytes, int token_bytes, std::size_t count, int vocab_size, std::string_view what,
                   std::vector<tokenizer::TokenId>& into);

/// Makes the .idx of a .bin from the lengths of its documents, in order. Takes four bytes a document. One thread.
class TokenTableWriter {
 public:
  explicit TokenTableWriter(int token_bytes) : token_bytes_(token_bytes) {}
  /// A document without tokens stays a document.
  void AddDocument(std::uint32_t tokens);
  std::uint64_t documents() const { return lengths_.size(); }
  std::uint64_t tokens() const { return tokens_; }
  /// Passes the bytes of the .idx to `sink`, a MiB at a time. They are the same as those of Megatron-LM's own writer.
  Status Write(const std::function<Status(ByteSpan)>& sink) const;

 private:
  const int token_bytes_;
  std::vector<std::uint32_t> lengths_;
  std::uint64_t sequences_ = 0;  ///< documents with tokens
  std::uint64_t tokens_ = 0;
};

/// Returns the key of the .idx that belongs to a .bin.
std::string TokenTableKey(std::string_view bin_key);

/// Makes `object`, a .bin, an object of token ids: sets its token_bytes and table. `table` is the .idx. Reads the first
/// bytes of the .idx. Blocks.
/// Errors: kCorrupt if it is not such a table; kUnsupported if the .bin holds other numbers than token ids.
Status OpenTokenFile(DataObject& object, object::ObjectInfo table, object::Call call);

/// Makes the index of an object of token ids from its table alone. Empty documents are not records, as blank lines are
/// not. Blocks. Errors: kCorrupt if the table contradicts itself or the object's size.
Result<RecordIndex> IndexTokenFile(const DataObject& object, object::Call call);

}  // namespace millrace::data
