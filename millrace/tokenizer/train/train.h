// Trains SentencePiece models with the SentencePiece library. The only part of Millrace that links this library.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::tokenizer {

struct TrainOptions {
  int vocab_size = 4096;
  int threads = 2;
  /// The share of the text's characters that get a token of their own; the rarest others fall back to bytes.
  double character_coverage = 0.9995;  // the SentencePiece library's default
  /// Beyond, training uses a uniform sample of the text's lines. Bounds the memory.
  std::uint64_t max_input_bytes = 64 * kMiB;
  std::uint64_t seed = 1;  ///< of the sample
};

/// Trains a BPE model with Llama 2's settings: byte fallback, identity normalisation, the ids 0 <unk>, 1 <s>, 2 </s>.
/// `next` yields the next document, or false at the end. Documents that are not valid UTF-8 are left out.
/// Returns the model's bytes, the same for the same documents and options.
/// Errors: kInvalidArgument if there is no text, or the text does not suit the size of the vocabulary; those of `next`.
/// Blocks for the time of the training. Sets the library's log level, which is process-wide, to errors.
Result<std::string> TrainSentencePieceBpe(const std::function<Result<bool>(std::string& document)>& next,
                                          TrainOptions options);

}  // namespace millrace::tokenizer
