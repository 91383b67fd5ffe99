// The finished pieces of an offline tokenization, and how they become a .bin and its .idx.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/object/store.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::data {

/// The documents of one part of the input. An object of its own until all are there: docs/formats/megatron.md.
struct TokenPart {
  std::vector<std::uint32_t> lengths;  ///< of its documents, in tokens
  std::string tokens;                  ///< as a .bin stores them

  void AddDocument(std::span<const tokenizer::TokenId> ids, int token_bytes);
  std::string Serialize() const;
};

/// A part as it lies in the store.
struct StoredPart {
  object::ObjectInfo info;
  std::vector<std::uint32_t> lengths;
  std::uint64_t tokens_at = 0;  ///< offset of its tokens; they reach to its end
};
/// Reads all of a part but its tokens. Fails with kCorrupt when it is damaged or not a part. Blocks.
Result<StoredPart> ReadStoredPart(object::Store& store, object::ObjectInfo info, object::Call call);

/// What one part of a multipart upload is made of.
struct UploadStep {
  struct Piece {
    std::size_t part = 0;  ///< of the stored ones
    object::ByteRange range;
  };
  std::vector<Piece> pieces;
  bool copied = false;  ///< one piece, which the store can copy by itself
  std::uint64_t bytes = 0;
};
/// Cuts the tokens of all parts, one after another, into uploads of at least the store's least size (but the last):
/// long pieces are copied inside the store, what is between them is read and written.
std::vector<UploadStep> PlanUpload(std::span<const StoredPart> parts, const object::Limits& limits);

/// Writes KEY.bin from the parts' tokens and then KEY.idx. Each appears whole; there is never an .idx of another .bin.
/// `threads` requests at a time. Blocks.
Status AssembleTokenFile(object::Store& store, const std::string& key, std::span<const StoredPart> parts,
                         int token_bytes, int threads, object::Call call);

}  // namespace millrace::data
