// The finished parts of an offline tokenization, and how they become a .bin and its .idx.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/object/store.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::data {

/// The documents of one part of the input. Each part is an object until all are finished (docs/formats/megatron.md).
struct TokenPart {
  std::vector<std::uint32_t> lengths;  ///< of the documents, in tokens
  std::string tokens;                  ///< as a .bin stores them

  void AddDocument(std::span<const tokenizer::TokenId> ids, int token_bytes);
  std::string Serialize() const;
};

/// A part that is stored as an object.
struct StoredTokenPart {
  object::ObjectInfo info;
  std::vector<std::uint32_t> lengths;
  std::uint64_t tokens_at = 0;  ///< offset of the tokens, which reach to the end of the object
};
/// Reads all of a part but its tokens. Blocks. Errors: kCorrupt if it is damaged or not a part.
Result<StoredTokenPart> ReadStoredTokenPart(object::ReadStore& store, object::ObjectInfo info, object::Call call);

/// The bytes of one part of a multipart upload.
struct UploadStep {
  struct PartRange {
    std::size_t part = 0;  ///< number of the stored part
    object::ByteRange range;
  };
  std::vector<PartRange> ranges;
  bool copied = false;  ///< a single range, which the store can copy by itself
  std::uint64_t bytes = 0;
};
/// Divides the tokens of all parts, one after another, into the parts of a multipart upload. All but the last have at
/// least the store's least size. Long ranges are copied inside the store; the others are read and written.
std::vector<UploadStep> PlanUpload(std::span<const StoredTokenPart> parts, const object::Limits& limits);

/// Writes KEY.bin from the parts' tokens, and then KEY.idx. Each appears whole, and an .idx never lies beside another
/// .bin. Makes `threads` requests at a time. Blocks.
Status AssembleTokenFile(object::Store& store, const std::string& key, std::span<const StoredTokenPart> parts,
                         int token_bytes, int threads, object::Call call);

}  // namespace millrace::data
