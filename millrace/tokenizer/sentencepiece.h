// The SentencePiece library behind tokenizer.h. Its own header stays inside sentencepiece.cc: it declares a namespace
// absl that collides with the real one.
#pragma once

#include <memory>
#include <string_view>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

/// Loads a BPE model. Fails with kInvalidArgument on anything that is not a SentencePiece model, and with kUnsupported
/// on a model of another algorithm.
Result<std::shared_ptr<const Tokenizer>> LoadSentencePiece(ByteSpan model, std::string_view name);

/// Where a long text may be cut so that encoding the parts gives exactly the ids of the whole: the first position at or
/// after `from` that is a space, follows something that is not a space (nor U+2581, which the library treats as one),
/// and is not the last byte. `text.size()` when there is none.
std::size_t NextCut(std::string_view text, std::size_t from);

}  // namespace millrace::tokenizer
